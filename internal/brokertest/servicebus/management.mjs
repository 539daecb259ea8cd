// $management of an entity: requests other than sending, receiving and settling on a link.

import { typedMap, types } from './amqp.mjs';
import { assemble } from './head.mjs';
import { checkSizes } from './limits.mjs';
import { Message } from './message.mjs';
import { Refused } from './refused.mjs';
import { NOTHING, Requests, list } from './request.mjs';
import { Malformed } from './sections.mjs';
import { tokenKey } from './token.mjs';

const LONG = 0x81;
const TIMESTAMP = 0x83;

export class Management extends Requests {
  constructor(peer, link, entity) {
    super(peer, link);
    this.link = link;
    this.entity = entity;
    entity.links.add(this);
  }

  perform(operation, { fields }) {
    const { counts, faults } = this.peer.namespace;
    counts.management++;
    if (faults.busy()) throw Refused.throttled();
    const act = OPERATIONS[operation];
    if (!act) throw Refused.bad(`There is no operation '${operation}' here.`);
    return faults.management.check(this.entity.path, operation, () => act(this.entity, fields, faults));
  }

  detach(condition, description) { this.peer.detach(this.link, condition, description); }

  closed() { this.entity.links.delete(this); }
}

const OPERATIONS = {
  'com.microsoft:renew-lock': (queue, fields, faults) => {
    if (faults.refuseLocks || faults.refuseRenewals) throw Refused.lockLost();
    const keys = keysOf(fields);
    if (!keys.every((key) => queue.locked(key))) throw Refused.lockLost();
    return { expirations: types.wrap_array(keys.map((key) => queue.renew(key)), TIMESTAMP) };
  },

  'com.microsoft:update-disposition': (queue, fields, faults) => {
    if (faults.refuseLocks) throw Refused.lockLost();
    const settle = DISPOSITIONS[fields.get('disposition-status')?.value];
    if (!settle) throw Refused.bad('There is no such disposition.');
    const keys = keysOf(fields);
    if (!keys.every((key) => queue.locked(key))) throw Refused.lockLost();
    for (const key of keys) settle(queue, key, typedMap(fields.get('properties-to-modify')), fields);
  },

  'com.microsoft:schedule-message': (entity, fields) => {
    const messages = (fields.get('messages')?.value ?? []).map((entry) => read(new Map(typedMap(entry)).get('message')?.value));
    entity.check(messages);
    const sequences = messages.map((message) => entity.accept(message));
    return { 'sequence-numbers': types.wrap_array(sequences, LONG) };
  },

  'com.microsoft:cancel-scheduled-message': (entity, fields) => { entity.cancel(list(fields.get('sequence-numbers'))); },

  'com.microsoft:receive-by-sequence-number': (queue, fields) => {
    const deletes = fields.get('receiver-settle-mode')?.value === 0;
    const found = queue.deferredOnes(list(fields.get('sequence-numbers')), deletes, fields.get('session-id')?.value ?? undefined);
    return { messages: found.map(({ message, lock }) => (lock
      ? { 'lock-token': types.wrap_uuid(lock.token), message: assemble(message, lock, true) } : { message: assemble(message) })) };
  },

  'com.microsoft:peek-message': (queue, fields) => {
    const from = Number(types.unwrap(fields.get('from-sequence-number')));
    const count = fields.get('message-count')?.value ?? 1;
    const found = queue.peek(from, count, fields.get('session-id')?.value ?? undefined);
    if (found.length === 0) return NOTHING;
    return { messages: found.map((message) => ({ message: assemble(message) })) };
  },

  'com.microsoft:renew-session-lock': (queue, fields, faults) => {
    const session = sessionOf(queue, fields);
    if (faults.refuseLocks || faults.refuseRenewals || !session.locked) throw Refused.sessionLockLost();
    return { expiration: types.wrap_timestamp(session.renew()) };
  },

  'com.microsoft:get-session-state': (queue, fields) => ({ 'session-state': sessionOf(queue, fields).state }),

  'com.microsoft:set-session-state': (queue, fields) => {
    const session = sessionOf(queue, fields);
    if (!session.locked) throw Refused.sessionLockLost();
    const state = fields.get('session-state')?.value ?? null;
    session.state = state && Buffer.from(state);
  },

  'com.microsoft:get-message-sessions': (queue, fields) => {
    const skip = fields.get('skip')?.value ?? 0;
    const names = queue.sessions?.names().slice(skip, skip + (fields.get('top')?.value ?? 100)) ?? [];
    return names.length > 0 ? { skip: types.wrap_int(skip + names.length), 'sessions-ids': names } : NOTHING;
  },
};

const DISPOSITIONS = {
  completed: (queue, key) => queue.complete(key),
  abandoned: (queue, key, changes) => queue.abandon(key, changes),
  defered: (queue, key, changes) => queue.defer(key, changes),
  suspended: (queue, key, changes, fields) => queue.deadLetter(key,
    fields.get('deadletter-reason')?.value ?? undefined, fields.get('deadletter-description')?.value ?? undefined, changes),
};

function keysOf(fields) { return list(fields.get('lock-tokens')).map(tokenKey); }

function sessionOf(queue, fields) {
  if (!queue.sessions) throw new Refused(400, 'amqp:not-allowed', `'${queue.path}' has no sessions.`);
  return queue.sessions.of(fields.get('session-id')?.value);
}

function read(bytes) {
  try {
    const message = Message.read(bytes);
    checkSizes(message);
    return message;
  } catch (error) {
    if (error instanceof Malformed) throw Refused.bad(error.message);
    throw error;
  }
}
