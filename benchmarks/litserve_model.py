"""The model of benchmarks/serving.py in LitServe, by its own way: decode, batch, predict, unbatch, encode.

python benchmarks/litserve_model.py SOURCE PORT MAX_BATCH SECONDS_OF_WAITING
"""

import base64
import sys
from typing import Any

import litserve
import torch

from vitrail.data.decode import open_image
from vitrail.evaluation.predict import autocast, choose_precision
from vitrail.inference.folding import as_folded
from vitrail.inference.trained import Trained, load_trained

CPU = torch.device("cpu")
Found = tuple[list[float], list[int]]  # probabilities and classes


class VitrailApi(litserve.LitAPI):
    """A folded model of vitrail, or one that an engine computes."""

    source = "deit_tiny init=random"
    trained: Trained
    model: torch.nn.Module

    def setup(self, device: str) -> None:
        """Load the model, in the process that computes."""
        self.trained = load_trained(self.source)
        self.model = as_folded(self.trained.model)

    def decode_request(self, request: dict[str, Any]) -> torch.Tensor:
        """The picture that the model sees."""
        return self.trained.view(open_image(base64.b64decode(request["image"])))

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Pictures together."""
        return torch.stack(inputs)

    def predict(self, images: torch.Tensor) -> list[Found] | Found:
        """The five most probable classes of a batch, or of one picture."""
        pictures = images if images.ndim == 4 else images[None]
        with torch.inference_mode(), autocast(CPU, choose_precision("auto", CPU)):  # as vitrail's server computes
            probabilities = self.model(self.trained.normalize(pictures)).float().softmax(dim=1)
        values, places = probabilities.topk(5, dim=1)
        answers = list(zip(values.tolist(), places.tolist(), strict=True))
        return answers if images.ndim == 4 else answers[0]

    def unbatch(self, output: list[Found]) -> list[Found]:
        """Answers one by one."""
        return output

    def encode_response(self, output: Found) -> dict[str, Any]:
        """An answer as JSON."""
        names, (values, places) = self.trained.class_names, output
        pairs = zip(places, values, strict=True)
        return {"answers": [{"class": names[at], "probability": round(value, 6)} for at, value in pairs]}


if __name__ == "__main__":
    source, port, max_batch, seconds = sys.argv[1:]
    api = VitrailApi(max_batch_size=int(max_batch), batch_timeout=float(seconds) if int(max_batch) > 1 else 0.0)
    api.source = source
    server = litserve.LitServer(api, accelerator="cpu", timeout=120)
    server.run(host="127.0.0.1", port=int(port), num_api_servers=1, generate_client_file=False, log_level="error")
