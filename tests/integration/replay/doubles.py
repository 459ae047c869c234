"""What answers in place of models, Ray and DeepSpeed while recorded rollouts are replayed: see replay.py."""

import asyncio
import contextlib
import copy
import http.server
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


class Recorded:
    """Trajectories, with what models said of their response tokens, and the dataset rows that they belong to.

    The file has an array for everything that was said, of all trajectories one after the other, the ``embeddings`` of
    ``texts``, and the rest as ``json``.
    """

    def __init__(self, path: Path) -> None:
        arrays = dict(np.load(path))
        facts = json.loads(str(arrays.pop("json")))
        self.rows: list[dict[str, Any]] = facts["rows"]
        self.vectors = dict(zip(facts["texts"], arrays.pop("embeddings"), strict=True))
        trajectories = facts["trajectories"]
        lengths = [len(each["response"]) for each in trajectories]
        self._said = {name: torch.from_numpy(values).split(lengths) for name, values in arrays.items()}
        self._trajectory = {(*each["prompt"], *each["response"]): row for row, each in enumerate(trajectories)}
        self._sampled: dict[tuple[int, ...], deque[list[int]]] = defaultdict(deque)
        for each in trajectories:
            if each["sampled"]:  # the others are teachers'
                self._sampled[tuple(each["prompt"])].append(each["response"])

    def said(self, name: str, tokens: list[int]) -> torch.Tensor:
        """[response tokens] of the trajectory with these tokens, its prompt's included, or of one that begins so: what
        is behind tokens does not change what is said of them."""
        known = tuple(tokens)
        if known in self._trajectory:
            return self._said[name][self._trajectory[known]]
        begun = {whole: row for whole, row in self._trajectory.items() if whole[: len(known)] == known}
        if not begun:
            raise KeyError(known)
        whole, row = next(iter(begun.items()))
        return self._said[name][row][: len(known) - len(whole)]

    def next_response(self, prompt: list[int]) -> list[int]:
        """In the order in which they were sampled, and then from the first one again."""
        responses = self._sampled[tuple(prompt)]
        responses.rotate(-1)
        return responses[-1]


class Engine:
    """In place of vLLM's engine."""

    def __init__(self, recorded: Recorded, end: int) -> None:
        self._recorded, self._end = recorded, end
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0)

    async def collective_rpc(self, _: str) -> list[dict[str, Any]]:
        return [{}]

    async def is_sleeping(self) -> bool:
        return False

    async def generate(self, prompt: dict[str, Any], *_: Any, **__: Any) -> Any:
        tokens = self._recorded.next_response(prompt["prompt_token_ids"])
        values = self._recorded.said("engine", [*prompt["prompt_token_ids"], *tokens]).tolist()
        log_probs = [{token: SimpleNamespace(logprob=value)} for token, value in zip(tokens, values, strict=True)]
        finish = "stop" if tokens[-1] == self._end else "length"
        output = SimpleNamespace(token_ids=tokens, logprobs=log_probs, finish_reason=finish)
        yield SimpleNamespace(outputs=[output])


class Model:
    """In place of OpenRLHF's policy, reference or critic: what was recorded of each row, as ``[B, A]`` like theirs.

    While it trains it says what the model said after its updates; ``trained`` gets the loss of every micro-batch and
    the gradients with respect to what it said.
    """

    mean = std = None
    global_steps = skipped_steps = 0  # DeepSpeed's counts

    def __init__(self, recorded: Recorded, *names: str) -> None:
        self._recorded, self._names, self._trains = recorded, names, False
        self.model, self.module, self.config = self, torch.nn.Identity(), SimpleNamespace()
        self.trained: list[dict[str, torch.Tensor]] = []
        self._hooks: list[Callable[..., None]] = []

    def register_forward_hook(self, hook: Callable[..., None]) -> None:
        self._hooks.append(hook)

    def train(self) -> None:
        self._trains = True

    def eval(self) -> None:
        self._trains = False

    def __call__(self, sequences, action_mask, attention_mask, return_output=False, **_: Any) -> Any:
        self._rows = [row[mask.bool()].tolist() for row, mask in zip(sequences, attention_mask, strict=True)]
        self._mask = action_mask.bool()
        self._values = [self._said(f"updated_{name}" if self._trains else name) for name in self._names]
        output = (self._values[0], SimpleNamespace(entropy=self._values[-1])) if return_output else self._values[0]
        for hook in self._hooks:
            hook(self, (), output)
        return output

    def _said(self, name: str) -> torch.Tensor:
        values = torch.zeros(self._mask.shape)
        for row, tokens in enumerate(self._rows):
            if self._mask[row].any():
                values[row, self._mask[row]] = self._recorded.said(name, tokens)[-int(self._mask[row].sum()) :]
        return values.requires_grad_(self._trains)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        tokens = torch.tensor([token for row in self._rows for token in row])
        step = {"loss": loss.detach(), "tokens": tokens}
        for name, values in zip(self._names, self._values, strict=True):
            if values.grad is not None:
                step[f"gradient_of_{name}"] = values.grad[self._mask]
        self.trained.append(step)


class Strategy:
    """In place of DeepSpeed: one rank, no optimizer."""

    ring_attn_group = ds_device_mesh = None

    def __init__(self, args: Any) -> None:
        self.args, self.accumulated_gradient = args, args.train.batch_size // args.train.micro_batch_size

    def setup_distributed(self) -> None: ...

    def get_ds_train_config(self) -> None: ...

    def get_ds_eval_config(self, offload: bool) -> None: ...

    def print(self, *_: Any) -> None: ...

    def optimizer_step(self, *_: Any, **__: Any) -> None: ...

    def prepare(self, model: Any) -> Any:
        for each in model[:1] if isinstance(model, tuple) else [model]:  # as DeepSpeed's engine counts
            getattr(each, "model", each).global_steps, getattr(each, "model", each).skipped_steps = 0, 0
        scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        return (model[0], None, scheduler) if isinstance(model, tuple) else model

    def setup_dataloader(self, rows, batch_size, pin_memory, shuffle, collate_fn, **_: Any) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(rows, batch_size=batch_size, shuffle=shuffle, collate_fn=collate_fn, drop_last=True)

    def backward(self, loss: torch.Tensor, model: Model, _: Any) -> None:
        model.backward(loss / self.accumulated_gradient)

    def get_grad_norm(self, _: Any) -> float:
        return 0.0

    def all_reduce(self, values: Any, op: str = "mean") -> Any:
        return values

    def is_rank_0(self) -> bool:
        return False


class Group:
    """In place of RayActorGroup: one actor, here. What goes to it in batches is copied, as on its way through Ray.

    ``appended`` gets the experience of every step, in micro-batches.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.appended: list[list[Any]] = []

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if method_name == "broadcast_to_vllm":
            return []
        with torch.random.fork_rng():
            torch.manual_seed(0)  # of the order in which rows are trained
            return [getattr(self.actor, method_name)(*args, **kwargs)]

    def async_run_method_batch(self, method_name: str, **lists: list[Any]) -> list[Any]:
        if method_name == "append":
            self.appended.append(copy.deepcopy(lists["experience"]))
        calls = [dict(zip(lists, values, strict=True)) for values in zip(*copy.deepcopy(lists).values(), strict=True)]
        return [[getattr(self.actor, method_name)(**call) for call in calls]]


class Remote:
    """The handle of an actor that lives here: ``handle.method.remote(...)`` gives the result in place of a promise."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Any:
            result = getattr(self._actor, name)(*args, **kwargs)
            return asyncio.run(result) if asyncio.iscoroutine(result) else result

        return SimpleNamespace(remote=remote)


@contextlib.contextmanager
def embedding_server(vectors: dict[str, np.ndarray]) -> Iterator[str]:
    """The address of a server with OpenAI's interface; a text that was not recorded gets zeros: no embedding."""
    zeros = np.zeros_like(next(iter(vectors.values()), np.zeros(1)))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            data = [{"index": i, "embedding": vectors.get(text, zeros).tolist()} for i, text in enumerate(texts)]
            body = json.dumps({"data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
