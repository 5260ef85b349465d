"""Meshfold: distributed training of mixture-of-experts language models.

    import meshfold as mf

    config = mf.Config.load("config.yaml")
    trainer = mf.Trainer(config)
    for _ in range(100):
        print(trainer.step()["loss"])

Errors are ValueError for bad input, TimeoutError for missed deadlines, MemoryError for full memory
pools, RuntimeError otherwise.
"""

from meshfold._core import Config, Tensor, Trainer

__all__ = ["Config", "Tensor", "Trainer"]
