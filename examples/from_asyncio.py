"""From asyncio: the tasks run in a thread, and a cancelled coroutine cancels them.

python examples/from_asyncio.py
"""

from __future__ import annotations

import asyncio
import sys
from typing import TypeVar

from bootstrap_agent import try_host

import phases
from hostrouting import Configure

T = TypeVar("T")


async def run(task: phases.Task[T]) -> T:
    """Run a task from a coroutine; if that is cancelled, the task puts back what it had begun, and then it ends."""
    scope = phases.CancelScope()
    running = asyncio.create_task(asyncio.to_thread(phases.run, task, scope=scope))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        scope.cancel("the coroutine was cancelled")
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # phases.Cancelled, as asked for
        raise


async def main() -> int:
    """Configure the host while the event loop goes on."""
    with try_host() as (config, host):
        (routes, overlap), _ = await asyncio.gather(run(Configure(config, host=host)), asyncio.sleep(0))
    print(f"{len(routes.added)} routes added; verdict: {overlap.verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
