// A value that notifies its readers of changes, and the hook that redraws a component.
import { useLayoutEffect, useState } from "./html.js";

export class Emitter {
  #listeners = new Set();

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  changed() {
    for (const listener of this.#listeners) listener();
  }
}

// Redraws the component after each change, at most once per screen frame.
export function useChanges(...emitters) {
  const [, setCount] = useState(0);
  // Before any other task, so that no change is missed between the first drawing and this.
  useLayoutEffect(() => {
    let frame = 0;
    const draw = () => { frame = 0; setCount((count) => count + 1); };
    const ask = () => { frame ||= requestAnimationFrame(draw); };
    const stops = emitters.map((emitter) => emitter.listen(ask));
    return () => {
      cancelAnimationFrame(frame);
      stops.forEach((stop) => stop());
    };
  }, emitters);
}
