// Answers that the test feeds itself: window.feed(n, text), window.finish(n), window.breakOff(n) for the n-th request.
export function fed() {
  const real = window.fetch;
  const streams = [];
  window.asked = [];
  window.fetch = (path, init) => {
    if (path !== "/v1/chat/completions") return real(path, init);
    window.asked.push(JSON.parse(init.body));
    const body = new ReadableStream({ start: (c) => void streams.push(c) });
    const n = streams.length - 1;
    init.signal.addEventListener("abort", () => streams[n].error(init.signal.reason));
    return Promise.resolve(new Response(body, { status: 200 }));
  };
  const write = (n, data) => streams[n].enqueue(new TextEncoder().encode(`data: ${data}\n\n`));
  const delta = (d, finish_reason = null) => JSON.stringify({ choices: [{ index: 0, delta: d, finish_reason }] });
  window.feed = (n, content) => write(n, delta({ content }));
  window.finish = (n, reason = "stop") => (write(n, delta({}, reason)), write(n, "[DONE]"), streams[n].close());
  window.close_ = (n) => streams[n].close();
  window.breakOff = (n) => streams[n].error(new TypeError("network error"));
}

// What a key costs: the time until the frame after it.
export const keyTime = (page) => page.evaluate(async () => {
  const input = document.getElementById("message"), began = performance.now();
  input.value = "x";
  input.dispatchEvent(new InputEvent("input", { bubbles: true }));
  await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
  return performance.now() - began;
});
