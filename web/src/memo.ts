import { Component, h, type ComponentType } from "preact";

// A component that is drawn anew only when its properties are not the `same`.
export function memo<P extends object>(Inner: (props: P) => unknown, same: (a: P, b: P) => boolean): ComponentType<P> {
  return class extends Component<P> {
    shouldComponentUpdate(next: P) {
      return !same(this.props, next);
    }
    render(props: P) {
      return h(Inner as ComponentType<P>, props);
    }
  } as unknown as ComponentType<P>;
}
