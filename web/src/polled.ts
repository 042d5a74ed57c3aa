// What the server is asked again and again while a panel is open and the page is seen.
import { useEffect, useState } from "preact/hooks";

// start(): the function that asks, which may remember what it got before. Null: there is no answer yet.
export function usePolled<T>(every: number, start: () => () => Promise<T>): T | null {
  const [got, show] = useState<T | null>(null);
  useEffect(() => {
    const ask = start();
    let timer = 0, ended = false;
    const tick = async () => {
      try {
        if (!document.hidden) {
          const now = await ask();
          if (!ended) show(now);
        }
      } catch { /* the chat says that the server is away */ }
      if (!ended) timer = window.setTimeout(tick, every);
    };
    tick();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, []);
  return got;
}
