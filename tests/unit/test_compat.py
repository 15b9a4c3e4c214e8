"""The heavy packages load beside the pinned torch, with or without torchvision's compiled parts."""

import subprocess
import sys

from mpc_vote import compat


def test_everything_loads_and_says_its_version() -> None:
    text = compat.versions()
    for name in ("torch 2.13.0", "torchvision 0.28.0", "crypten 0.4.1"):
        assert name in text


def test_torchvision_models_and_transforms_work() -> None:
    torchvision = compat.import_torchvision()
    import torch

    model = torchvision.models.resnet18(weights=None).eval()
    with torch.inference_mode():
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_neighbour_agents_and_the_dealer_never_load_torch() -> None:
    """Their memory is a tenth of what torch alone would take."""
    code = (
        "import sys, agent_node.command, aggregator.dealer.servicer, mpc_vote.learning.voters.knn; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
