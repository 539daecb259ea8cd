// A namespace: its entities by name, its keys, its switches for faults. Each test has one of its own.

import { Admin } from './admin.mjs';
import { Deadlines } from './deadlines.mjs';
import { Faults } from './faults.mjs';
import { Keys } from './keys.mjs';
import { Refused } from './refused.mjs';
import { rulesOf } from './rules.mjs';
import { Server } from './server.mjs';
import { Topic } from './topic.mjs';

const MOST_HOPS = 4;

export class Namespace {
  entities = new Map(); // queues and topics by lower-case path
  deadlines = new Deadlines();
  faults = new Faults();
  keys = new Keys();
  counts = { connections: 0, sends: 0, messages: 0, deliveries: 0, settles: 0, management: 0, claims: 0, admin: 0 };
  maxMessageSize = 256 << 10;
  maxBatchSize = 256 << 10;
  server = new Server(this);
  admin = new Admin(this);

  createdAt = Date.now();

  constructor(profile) {
    this.rules = rulesOf(profile);
  }

  get host() { return `127.0.0.1:${this.port}`; }

  async listen() {
    this.port = await this.server.listen();
    this.adminPort = await this.admin.listen();
  }

  close() {
    this.server.close();
    this.admin.close();
    this.deadlines.close();
  }

  // find returns the entity of a path: a queue, a topic, a subscription, a sub-queue of one of them.
  find(path) {
    const lower = path.toLowerCase().replace(/^\/+|\/+$/g, '');
    const [, base, sub] = /^(.*?)(\/\$deadletterqueue|\/\$transfer\/\$deadletterqueue)?$/.exec(lower);
    const entity = this.entities.get(base) ?? this.#subscription(base);
    if (!entity) throw Refused.notFound(path);
    if (!sub) return entity;
    const below = sub === '/$deadletterqueue' ? entity.deadLetters : entity.transferDeadLetters;
    if (!below) throw Refused.notFound(path);
    return below;
  }

  #subscription(path) {
    const [, topic, name] = /^(.*)\/subscriptions\/([^/]+)$/.exec(path) ?? [];
    return this.entities.get(topic)?.subscriptions?.get(name);
  }

  // forward forwards a message to another entity. It returns the reason if it cannot.
  forward(message, target, now) {
    if (message.hops >= MOST_HOPS) return 'MaxTransferHopCountExceeded';
    message.hops++;
    message.partition = undefined; // the other entity chooses it
    try {
      const entity = this.find(entityName(target));
      entity.check([message]);
      entity.accept(message, now);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return error.status === 404 ? 'MessagingEntityNotFound' : 'ForwardingFailed';
    }
    return undefined;
  }

  * queues() {
    for (const entity of this.entities.values()) {
      if (entity instanceof Topic) yield* entity.subscriptions.values();
      else yield entity;
    }
  }
}

// entityName returns the name in an address that may be absolute.
export function entityName(address) {
  return /^[a-z]+:\/\//i.test(address) ? decodeURIComponent(new URL(address).pathname.slice(1)) : address;
}
