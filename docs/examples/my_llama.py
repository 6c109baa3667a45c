"""A Llama of Hugging Face. Nothing is downloaded: the model comes from its configuration."""

import torch.nn.functional as F
from fp8parity.workload.own import OwnModel
from my_models import SCHEDULE, text


def build(seed):
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.1, **size))


def next_token(module, ids, targets):
    logits = module(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def llama():
    return OwnModel("my-llama", build, next_token, text, SCHEDULE, corpus="chain", blocks="model.layers")
