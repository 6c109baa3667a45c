"""Log a gate to W&B or MLflow: --parity-log wandb, --parity-log mlflow.

The settings of the packages apply (WANDB_PROJECT, MLFLOW_TRACKING_URI and so on). Without them, all is stored in the
folder of the records.
"""

import os
import re
import time

PROJECT = "fp8-parity"


def wandb(log, folder):
    import wandb as package

    place = {} if "WANDB_DIR" in os.environ else {"dir": str(folder)}
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    run = package.init(project=project, name=log.name, config={**log.facts, "sentence": log.sentence}, **place)
    for step, losses in log.steps:
        run.log(losses, step=step)
    run.log({"verdicts": package.Table(columns=list(log.columns), data=log.rows)})
    run.summary.update(dict(log.numbers))
    run.finish(exit_code=0 if log.accepted else 1)


def mlflow(log, folder):
    import mlflow as package
    from mlflow.entities import Metric

    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    if "MLFLOW_TRACKING_URI" not in os.environ:
        package.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        if package.get_experiment_by_name(experiment) is None:  # artifacts would go to the current folder
            package.create_experiment(experiment, (folder / "mlartifacts").resolve().as_uri())
    package.set_experiment(experiment)
    run, now = package.start_run(run_name=log.name), int(1000 * time.time())
    package.set_tags({re.sub(r"[^\w./ -]", "_", k): v for k, v in {**log.facts, "sentence": log.sentence}.items()})
    package.log_metrics(dict(log.numbers))
    losses = [Metric(name, loss, now, step) for step, each in log.steps for name, loss in each.items()]
    for i in range(0, len(losses), 1000):  # MLflow takes no more at once
        package.MlflowClient().log_batch(run.info.run_id, metrics=losses[i : i + 1000])
    package.log_table({name: [row[i] for row in log.rows] for i, name in enumerate(log.columns)}, "verdicts.json")
    package.end_run("FINISHED" if log.accepted else "FAILED")


def pytest_fp8parity_trackers():
    return {"wandb": wandb, "mlflow": mlflow}
