"""What a stage's worker process does for `live.stages`: vLLM imports this in each."""

from torch.profiler import ProfilerActivity, profile

from mrv2lab.live.extension import Extension
from mrv2lab.live.stages import shares


class StageWorker(Extension):
    """Methods that `collective_rpc` can call on every worker."""

    def begin_profile(self) -> None:
        """Of the device's work."""
        self.seen = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
        self.seen.__enter__()

    def end_profile(self) -> dict[str, float]:
        """What this stage did with its time, as `stages.shares`."""
        self.seen.__exit__(None, None, None)
        events = self.seen.profiler.kineto_results.events()  # type: ignore[union-attr]
        on_device = [e for e in events if e.device_type().name == "CUDA" and not e.is_user_annotation()]
        spans = [(e.name(), (e.start_ns(), e.start_ns() + e.duration_ns())) for e in on_device]
        passing = [span for name, span in spans if name.startswith("nccl")]
        return shares([span for name, span in spans if not name.startswith("nccl")], passing)
