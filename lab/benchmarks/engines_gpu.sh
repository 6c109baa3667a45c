#!/usr/bin/env bash
# Make the pages of trainer and engine with native kernels: of tiny, of a small Qwen3, and of batch invariance.
#
#     bash lab/benchmarks/engines_gpu.sh OUT
#
# It needs a GPU with FP8, and no network. OUT keeps weights and scores, so a second call goes on where one stopped.
set -euo pipefail
out=${1:?"give a folder"}
run() { python -m fp8parity engines "$@" --execution native; }
mkdir -p "$out"
if [ ! -f "$out/qwen3/config.json" ]; then
  python - "$out/qwen3" <<'PYTHON'
import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8}
more = {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "initializer_range": 0.06, "bos_token_id": 0}
Qwen3ForCausalLM(Qwen3Config(**sizes, **more)).bfloat16().save_pretrained(sys.argv[1])
PYTHON
fi
run matrix --model tiny --records "$out/tiny-records" --report "$out/tiny.html" --report "$out/tiny.md" --report "$out/tiny.json"
run matrix --hf "$out/qwen3" --records "$out/qwen3-records" --report "$out/qwen3.html" --report "$out/qwen3.md" --report "$out/qwen3.json"
run invariance --report "$out/invariance.html" --report "$out/invariance.md" --report "$out/invariance.json"
