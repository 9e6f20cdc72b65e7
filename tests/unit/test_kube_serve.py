from __future__ import annotations

import aiohttp

from dradriver.kube.serve import serve_health


async def test_health_readiness_and_metrics_answer_while_the_block_runs() -> None:
    state = {"ready": False, "alive": True}
    async with (
        serve_health(0, ready=lambda: state["ready"], alive=lambda: state["alive"], host="127.0.0.1") as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def status(path: str) -> int:
            async with session.get(path) as answer:
                return answer.status

        assert (await status("/healthz"), await status("/readyz")) == (200, 503)
        state.update(ready=True, alive=False)
        assert (await status("/healthz"), await status("/readyz")) == (503, 200)
        async with session.get("/metrics") as answer:
            assert answer.content_type == "text/plain"
            assert "python_info" in await answer.text()
