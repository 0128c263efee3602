"""What each of EngineCore's clients gets of a step, where several API servers share one engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineStats,
    SchedulerStats,
)

ABORT_CLIENT = "abort_client:"
"""Beginning of the method that ends all requests of one client; its number follows."""


class OutputShare:
    """Knows whose each request is. `rank` is this engine's number among the replicas."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._owners: dict[str, int] = {}

    def note(self, request: EngineCoreRequest) -> None:
        """A request has come; the client that started the engine is who gets all the rest."""
        if request.client_index:
            self._owners[request.request_id] = request.client_index

    def forget(self, request_ids: Iterable[str]) -> None:
        """They are aborted: nothing of them will be sent."""
        for request_id in request_ids:
            self._owners.pop(request_id, None)

    def ids_of(self, client: int) -> list[str]:
        """The unfinished requests of a client."""
        return [request_id for request_id, owner in self._owners.items() if owner == client]

    def shares(self, outputs: EngineCoreOutputs) -> Iterator[tuple[int, EngineCoreOutputs]]:
        """A message for each client that has a request in this step."""
        by_client: dict[int, list[EngineCoreOutput]] = {}
        for output in outputs.outputs:
            by_client.setdefault(self._owners.get(output.request_id, 0), []).append(output)
            if output.finish_reason is not None:
                self.forget([output.request_id])
        for client, own in by_client.items():
            yield (
                client,
                EngineCoreOutputs(own, timestamp=outputs.timestamp, engine_index=self._rank),
            )

    def stats(self, outputs: EngineCoreOutputs) -> EngineStats:
        """What the coordinator learns of the same step."""
        prefills = [one.prefill_stats for one in outputs.outputs if one.prefill_stats is not None]
        return EngineStats(
            self._rank,
            outputs.scheduler_stats or SchedulerStats(),
            sum(prefill.num_prompt_tokens for prefill in prefills),
            sum(prefill.num_cached_tokens for prefill in prefills),
            sum(len(output.new_token_ids) for output in outputs.outputs),
        )
