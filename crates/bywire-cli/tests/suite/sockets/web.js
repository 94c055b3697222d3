// HTTP/1.1 and HTTP/2 servers, or clients of theirs that check every byte that comes back, in Node's own libraries.
const http = require('http');
const http2 = require('http2');

function bytes(seed, length) {
  const made = Buffer.alloc(length);
  let state = seed >>> 0 || 1;
  for (let at = 0; at < length; at++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    made[at] = state >>> 24;
  }
  return made;
}

const mirror = (request, response) => {
  response.on('error', () => {});
  request.pipe(response);
};

function serve() {
  const first = http.createServer({ keepAliveTimeout: 60000 }, mirror);
  const second = http2.createServer(mirror);
  second.on('sessionError', () => {});
  // Clients know the second port by the first, which is all that is told.
  const listen = (left) => first.listen(0, '127.0.0.1', () => {
    const port = first.address().port;
    const told = () => console.log(port);
    second.once('error', () => {
      // Or it would tell the first port of this attempt when a later one succeeds.
      second.removeListener('listening', told);
      first.close(() => (left > 0 ? listen(left - 1) : process.exit(1)));
    });
    second.once('listening', told).listen(port + 1, '127.0.0.1');
  });
  listen(20);
}

async function ask(due, send) {
  const got = await send(due);
  if (!Buffer.from(got).equals(due)) throw new Error('other bytes came back');
}

function plainly(port, agent) {
  return (due) => new Promise((resolve, reject) => {
    const request = http.request({ port, host: '127.0.0.1', method: 'POST', agent }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
      response.on('error', reject);
    });
    request.on('error', reject);
    request.end(due);
  });
}

function bySession(session) {
  return (due) => new Promise((resolve, reject) => {
    const stream = session.request({ ':method': 'POST' });
    const parts = [];
    stream.on('data', (part) => parts.push(part));
    stream.on('end', () => resolve(Buffer.concat(parts)));
    stream.on('error', reject);
    stream.end(due);
  });
}

const byFetch = (port) => async (due) => {
  const response = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body: due });
  return response.arrayBuffer();
};

async function rounds(seed, send) {
  for (let round = 0; round < 40; round++) {
    await ask(bytes(seed * 1000 + round, 1 + (round * 7919 * seed) % 60000), send);
  }
}

async function talk(port) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 3 });
  const session = http2.connect(`http://127.0.0.1:${port + 1}`);
  const ways = [plainly(port, agent), bySession(session), byFetch(port)];
  const all = ways.flatMap((send, way) => [1, 2, 3].map((seed) => rounds(seed + 3 * way, send)));
  await Promise.all(all);
  session.close();
  agent.destroy();
}

if (process.argv[2]) {
  talk(Number(process.argv[2])).then(
    () => { console.log('fine'); process.exit(0); },
    (error) => { console.log(String(error)); process.exit(1); });
} else {
  serve();
}
