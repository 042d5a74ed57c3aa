import { Component, h } from "preact";

// A component that is drawn anew only when `same` says so.
export function memo(Inner, same) {
  return class extends Component {
    shouldComponentUpdate(next) {
      return !same(this.props, next);
    }
    render(props) {
      return h(Inner, props);
    }
  };
}
