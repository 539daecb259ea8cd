// The tests' requests over HTTP: create a namespace, make it fail, read its state, delete it.

import http from 'node:http';

import { Namespace } from './namespace.mjs';

const namespaces = new Map();

// serve listens on the port and answers each request with JSON.
export function serve(port) {
  const server = http.createServer(async (request, response) => {
    try {
      let body = '';
      for await (const chunk of request.setEncoding('utf8')) body += chunk;
      const [, kind, id, action] = decodeURIComponent(request.url).split('/');
      const answer = kind === '' ? {} : await act(request.method, kind, id, action, body ? JSON.parse(body) : {});
      response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer ?? {}));
    } catch (error) {
      if (request.complete) response.writeHead(400).end(error.stack);
      else response.destroy();
    }
  });
  server.keepAliveTimeout = 0; // else a client may send a request on a connection that closes at this moment
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host: '127.0.0.1', port }, resolve);
  });
}

async function act(method, kind, id, action, body) {
  if (kind !== 'namespaces') throw new Error(`there is no ${kind}`);
  if (method === 'POST' && !id) return create(body);
  const namespace = namespaces.get(id);
  if (!namespace) throw new Error(`there is no namespace ${id}`);
  if (method === 'DELETE') {
    namespaces.delete(id);
    return namespace.close();
  }
  const does = ACTIONS[action];
  if (!does) throw new Error(`there is no action ${action}`);
  return does(namespace, body);
}

async function create({ profile, maxMessageSize, maxBatchSize }) {
  const namespace = new Namespace(profile || undefined);
  namespace.maxMessageSize = maxMessageSize || namespace.maxMessageSize;
  namespace.maxBatchSize = maxBatchSize || namespace.maxBatchSize;
  await namespace.listen();
  namespaces.set(String(namespace.port), namespace);
  const { name, secret } = namespace.keys.get('RootManageSharedAccessKey');
  return { id: String(namespace.port), amqp: namespace.host, admin: `127.0.0.1:${namespace.adminPort}`, key: { name, secret } };
}

const ACTIONS = {
  // faults sets the named switches.
  faults: (namespace, body) => namespace.faults.set(body),

  // locks permits locks of any duration.
  locks: ({ rules }, { shortest }) => { rules.lockDuration = [shortest, rules.lockDuration[1]]; },

  // drop resets all connections.
  drop: (namespace) => namespace.server.drop(),

  // detach ends all links of an entity, or of all, as the service does when it moves one.
  detach: (namespace, { entity, condition, description }) => {
    const all = entity ? [namespace.find(entity)] : [...namespace.entities.values(), ...namespace.queues()];
    for (const { links } of all) {
      for (const link of [...links]) link.detach(condition ?? 'amqp:link:detach-forced', description ?? 'The link was detached by the broker.');
    }
  },

  // lose ends all locks of an entity, or of all, as if they had expired.
  lose: (namespace, { entity }) => {
    for (const queue of entity ? [namespace.find(entity)] : namespace.queues()) {
      queue.lose();
      queue.deadLetters?.lose();
    }
  },

  // key creates a key with only the rights named.
  key: (namespace, { name, rights }) => {
    const { secret } = namespace.keys.add(name, rights);
    return { name, secret };
  },

  // bearer accepts the token of an identity.
  bearer: (namespace, { token, rights }) => namespace.keys.addBearer(token, rights),

  // state returns counts of requests, and of the messages of each queue.
  state: (namespace) => ({
    counts: { ...namespace.counts, open: namespace.server.peers.size, refused: namespace.server.refused },
    entities: namespace.entities.size,
    queues: Object.fromEntries([...namespace.queues()].map((queue) => [queue.path, { ...queue.counts, locked: queue.lockedCount, links: queue.links.size }])),
    memory: process.memoryUsage().rss,
  }),
};
