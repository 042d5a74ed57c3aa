// The port that a started `carat serve --port 0` tells on stdout. ended: a promise of its exit code; log: what it has said
// on stderr, for the error if it ends first.
export function serverPort(server, ended, log) {
  return new Promise((resolve, reject) => {
    let out = "";
    server.stdout.on("data", (d) => {
      const m = /127\.0\.0\.1:(\d+)/.exec((out += d));
      if (m) resolve(Number(m[1]));
    });
    ended.then((code) => reject(new Error(`ended with ${code}\n${log()}`)));
  });
}
