// An echo server, or clients that check every byte that comes back.
const net = require('net');

function serve() {
  const server = net.createServer({ allowHalfOpen: true }, (peer) => {
    peer.on('error', () => {});
    peer.pipe(peer);
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
}

function bytes(seed, length) {
  const made = Buffer.alloc(length);
  let state = seed >>> 0 || 1;
  for (let at = 0; at < length; at++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    made[at] = state >>> 24;
  }
  return made;
}

function talk(port, seed) {
  return new Promise((resolve, reject) => {
    const peer = net.connect(port, '127.0.0.1');
    let round = 0, due = null, got = [], length = 0;
    const next = () => {
      if (round === 60) return peer.end();
      due = bytes(seed * 1000 + round, 1 + (round * 7919 * seed) % 100000);
      round += 1;
      got = [];
      length = 0;
      peer.write(due);
    };
    peer.on('connect', next);
    peer.on('error', reject);
    peer.on('data', (part) => {
      got.push(part);
      length += part.length;
      if (length < due.length) return;
      if (!Buffer.concat(got).equals(due)) return reject(new Error('other bytes came back'));
      next();
    });
    peer.on('end', () => (round === 60 ? resolve() : reject(new Error('an early end'))));
  });
}

if (process.argv[2]) {
  const seeds = [1, 2, 3, 4, 5, 6, 7, 8];
  Promise.all(seeds.map((seed) => talk(Number(process.argv[2]), seed))).then(
    () => console.log('fine'),
    (error) => { console.log(String(error)); process.exit(1); });
} else {
  serve();
}
