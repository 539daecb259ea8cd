// The AMQP 1.0 library with five corrections: it passes messages as the received bytes, forgets an aborted transfer,
// writes an attach before the messages of its link, ignores the end of a missing session, and answers each delivery with its own outcome.

import { createRequire } from 'node:module';

const require = createRequire(new URL('../node/package.json', import.meta.url));

const rhea = require('rhea');
const Session = require('rhea/lib/session.js');
const frames = require('rhea/lib/frames.js');
export const Connection = require('rhea/lib/connection.js');
export const { types } = rhea;

// Messages are kept byte for byte: decoding and encoding them would lose the types of integers.
export const decodeMessage = rhea.message.decode;
export const encodeMessage = rhea.message.encode;
rhea.message.decode = (bytes) => bytes;

// A sender that aborts a message marks its last transfer.
const onTransfer = Session.prototype.on_transfer;
Session.prototype.on_transfer = function (frame) {
  const link = this._get_link(frame);
  if (!frame.performative.aborted) return onTransfer.call(this, frame);
  this.incoming.next_transfer_id++;
  if (link._incomplete) link._incomplete.settled = true;
  link._incomplete = undefined;
};

// An attach and the credit of its link may arrive in one read. The library would write the messages for that credit before
// its own attach, and the client would drop them.
const processSession = Session.prototype._process;
Session.prototype._process = function () {
  if (this.state.need_open()) this.output(this.local.begin);
  for (const link of Object.values(this.links)) if (link.state.need_open()) this.output(link.local.attach);
  processSession.call(this);
};

// A client that gives up a session may end it without its begin, or twice. Microsoft's AMQP library ignores that, as
// AmqpConnection.cs of https://github.com/Azure/azure-amqp shows. rhea ends the connection.
const onEnd = Connection.prototype.on_end;
Connection.prototype.on_end = function (frame) {
  if (this.remote_channel_map[frame.channel]?.state.remote_open) onEnd.call(this, frame);
};

// A range of deliveries is at most as long as the number of open ones; a hostile range would take minutes.
const onDisposition = Session.prototype.on_disposition;
Session.prototype.on_disposition = function (frame) {
  const { first, last, role } = frame.performative;
  const open = (role ? this.outgoing : this.incoming).deliveries.size;
  if (last !== undefined && last !== null && last - first > open + OPEN_DELIVERIES) throw new Error('a disposition of too many deliveries');
  return onDisposition.call(this, frame);
};

// OPEN_DELIVERIES is how many unsettled deliveries a session may have in each direction.
export const OPEN_DELIVERIES = 1 << 20;
export const WINDOW = 5000;

export function container() {
  const made = rhea.create_container({
    id: 'holdfast-servicebus',
    sender_options: { autosettle: false, treat_modified_as_released: false },
    receiver_options: { autoaccept: false, autosettle: false, credit_window: 0 },
  });
  const mechanisms = made.sasl_server_mechanisms;
  mechanisms.enable_anonymous();
  mechanisms.MSSBCBS = mechanisms.ANONYMOUS; // of Microsoft's clients; tokens are presented to $cbs with both
  return made;
}

export const ACCEPTED = rhea.message.accepted().described();

export function rejected(condition, description) {
  return rhea.message.rejected({ error: { condition, description } }).described();
}

const answers = Symbol('answers that wait for the end of this turn');

// answer settles a delivery of either direction with an outcome. Neighbours with the same one share a frame. The
// library would merge the first delivery of a range with a second whose outcome is another.
export function answer(delivery, outcome) {
  const { session } = delivery.link;
  const told = delivery.remote_settled;
  delivery.settled = true;
  delivery.remote_settled = true;
  delivery.state = outcome;
  delivery.data = undefined; // a delivery that stays unsettled blocks later ones
  session.connection._register();
  if (told) return; // the other side settled it and expects no answer
  if (!session[answers]) {
    session[answers] = [];
    process.nextTick(writeAnswers, session);
  }
  session[answers].push(delivery);
}

function writeAnswers(session) {
  const waiting = session[answers];
  session[answers] = undefined;
  if (session.connection.socket.destroyed) return;
  for (let i = 0; i < waiting.length;) {
    const first = waiting[i];
    let last = first;
    while (++i < waiting.length && follows(last, waiting[i])) last = waiting[i];
    session.output(frames.disposition({
      role: first.link.is_receiver(), first: first.id, last: last.id, settled: true, state: first.state,
    }));
  }
}

function follows(a, b) {
  return b.id === a.id + 1 && b.state === a.state && b.link.is_receiver() === a.link.is_receiver();
}

// typedMap returns the wanted keys of a map and their values, with types.
export function typedMap(typed, wanted = () => true) {
  if (!typed || !types.is_map(typed)) return [];
  const entries = [];
  for (let i = 0; i + 1 < typed.value.length; i += 2) {
    const [key, value] = typed.value.slice(i, i + 2);
    if (wanted(key)) entries.push([key.value, value]);
  }
  return entries;
}

export function encodeTyped(typed) {
  const writer = new types.Writer();
  writer.write(typed);
  return writer.toBuffer();
}
