// The AMQP listener of a namespace.

import net from 'node:net';

import { Connection, OPEN_DELIVERIES, WINDOW, container } from './amqp.mjs';
import { Peer } from './peer.mjs';

const OPTIONS = {
  container_id: 'holdfast-servicebus',
  max_frame_size: 65536,
  channel_max: 4999,
  session_buffer_size: { incoming: WINDOW, outgoing: OPEN_DELIVERIES },
};

export class Server {
  peers = new Set();
  refused = 0; // connections
  #tcp = net.createServer({ noDelay: true }, (socket) => this.#accept(socket));
  #container = container();

  constructor(namespace) {
    this.namespace = namespace;
    const to = (what) => (context) => context.connection.peer?.[what](context);
    this.#container.on('sender_open', to('senderOpened'));
    this.#container.on('receiver_open', to('receiverOpened'));
    this.#container.on('sender_flow', to('flowed'));
    this.#container.on('sender_draining', to('draining'));
    this.#container.on('message', to('received'));
    for (const outcome of ['accepted', 'rejected', 'released', 'modified']) this.#container.on(outcome, to('settled'));
    this.#container.on('sender_close', to('linkClosed'));
    this.#container.on('receiver_close', to('linkClosed'));
    this.#container.on('session_close', to('sessionClosed'));
    for (const event of ['connection_close', 'disconnected', 'connection_error', 'session_error', 'sender_error', 'receiver_error']) {
      this.#container.on(event, () => {});
    }
    for (const event of ['error', 'protocol_error']) this.#container.on(event, (error) => console.error('bad frame:', error?.message));
  }

  listen() {
    return new Promise((resolve, reject) => {
      this.#tcp.once('error', reject);
      this.#tcp.listen({ host: '127.0.0.1', port: 0 }, () => resolve(this.#tcp.address().port));
    });
  }

  #accept(socket) {
    const { faults, rules } = this.namespace;
    if (faults.refuseConnections || this.peers.size >= rules.connections) {
      this.refused++;
      socket.resetAndDestroy();
      return;
    }
    this.namespace.counts.connections++;
    together(socket);
    const connection = new Connection(OPTIONS, this.#container);
    const peer = new Peer(this.namespace, connection, socket);
    connection.peer = peer;
    this.peers.add(peer);
    socket.on('error', () => {});
    socket.on('close', () => {
      this.peers.delete(peer);
      peer.closed();
    });
    connection.accept(socket);
  }

  // drop resets all connections.
  drop() {
    for (const peer of this.peers) peer.drop();
  }

  close() {
    this.#tcp.close();
    this.drop();
  }
}

// together makes the writes of one turn of the event loop one write.
function together(socket) {
  const write = socket.write;
  let corked = false;
  socket.write = (...args) => {
    if (!corked) {
      corked = true;
      socket.cork();
      setImmediate(() => {
        corked = false;
        socket.uncork();
      });
    }
    return write.apply(socket, args);
  };
}
