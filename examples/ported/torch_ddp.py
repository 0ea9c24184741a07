"""Ray Train's pattern "distributed data parallel with PyTorch", its imports changed and nothing else.

    was:  from ray import train
          from ray.train import Checkpoint, RunConfig, ScalingConfig
          from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

    pip install 'runfold[torch,examples]'
    python examples/ported/torch_ddp.py

The data are scikit-learn's 1,797 images of handwritten digits; the ranks average gradients over gloo, on the CPU.
"""

import os
import tempfile

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import runfold as train
from runfold import Checkpoint, RunConfig, ScalingConfig
from runfold.torch import TorchTrainer, prepare_data_loader, prepare_model


def train_func(config):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(images / 16.0, dtype=torch.float32)
    labels = torch.as_tensor(labels)
    data = TensorDataset(images[:1500], labels[:1500])
    loader = prepare_data_loader(DataLoader(data, batch_size=config["batch_size"], shuffle=True))
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)))
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(config["num_epochs"]):
        if train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for batch, wanted in loader:
            loss = criterion(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean().item()
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if train.get_context().get_world_rank() == 0:
                unwrapped = getattr(model, "module", model)
                torch.save(unwrapped.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            train.report({"loss": loss.item(), "accuracy": accuracy}, checkpoint=checkpoint)
    digest = sum(float(parameter.sum()) for parameter in model.parameters())
    # Every rank has the same weights: that is what averaging the gradients is for.
    assert len({round(other, 4) for other in train.all_gather(digest)}) == 1
    return accuracy


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"lr": 0.005, "num_epochs": 5, "batch_size": 32},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="digits-ddp"),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as checkpoint_dir:
        state = torch.load(os.path.join(checkpoint_dir, "model.pt"), weights_only=True)
    print(
        f"{result.return_value:.1%} of the held-out images are read correctly; {len(state)} tensors in the checkpoint"
    )
    assert result.return_value > 0.8
