"""The project: a model server, the proxy, runner processes, and a queue of tasks in the database.

The arguments are the numbers of tasks and of runners.
"""

import asyncio
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rollbook import EnqueueRolloutRequest
from rollbook.training import Backend, LLMProxy

import store

TASKS, RUNNERS = map(int, sys.argv[1:])


class Model(BaseHTTPRequestHandler):
    """A model that can add."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = str(sum(map(int, body["messages"][0]["content"].split(" + "))))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        answer = json.dumps({"id": "c-1", "model": "policy", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


async def main(model_url: str) -> None:
    backend = Backend("model", model_url, models=["policy"], version="step-0")
    async with await store.opened() as opened, LLMProxy(store=opened, backends=[backend]) as proxy:
        await opened.add_resources({"main_llm": proxy.as_resource()})
        tasks = [EnqueueRolloutRequest(input={"a": number, "b": 2}, mode="train") for number in range(TASKS)]
        queued = await opened.enqueue_many_rollouts(tasks)
        program = Path(sys.executable).with_name("rollbook")
        runner = await asyncio.create_subprocess_exec(program, "runner", "agents:agent", "--runners", str(RUNNERS))
        try:
            ended = await opened.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in queued], timeout=300)
        finally:
            runner.send_signal(signal.SIGTERM)
            code = await runner.wait()
        names = [span.name for rollout in ended for span in await opened.query_spans(rollout.rollout_id)]
        report = await opened.log.verify()
        print(sorted(rollout.status for rollout in ended), names.count("openai.chat.completion"), code, report.ok)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.1:{server.server_port}"))
