// The switches by which a test makes a namespace fail. Each is off until it is set.

import { Refused } from './refused.mjs';

export class Faults {
  refuseConnections = false;
  refuseLocks = false; // every settlement and renewal is answered as lock lost
  refuseRenewals = false; // only renewals are
  throttle = 0; // this many requests are answered "server busy"
  unanswered = 0; // this many sends and settlements are carried out, and the connection is cut instead of an answer
  delay = 0; // milliseconds before a send, a settlement or a request is read
  symbolsOnly = false; // keys of an outcome's info map that are no symbols are ignored
  silent = false; // nothing is answered or delivered any more, and connections stay
  management = new Refusal(); // of requests on $management
  claims = new Refusal(); // of tokens presented to $cbs
  links = new Refusal(); // of links, before they are attached
  sends = new Refusal(); // of messages sent on a link: by the operation send, or schedule if one of them is delayed

  // set changes the named switches.
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (typeof this[name] !== typeof value) throw new Error(`there is no fault ${name} of ${JSON.stringify(value)}`);
      this[name] = this[name] instanceof Refusal ? new Refusal(value) : value;
    }
  }

  // busy reports whether the next request is throttled.
  busy() { return this.#count('throttle'); }

  // cut reports whether the next request is not answered.
  cut() { return this.#count('unanswered'); }

  #count(name) {
    if (this[name] <= 0) return false;
    this[name]--;
    return true;
  }

  // later calls what after the delay, at once if there is none.
  later(what) {
    if (this.silent) return;
    if (this.delay > 0) after(this.delay, what);
    else what();
  }
}

// Refusal answers requests with a status: those for an address and of an operation, or all if none is named. It ends after
// a number of times, and never if that is 0. If it is late, the request is carried out before.
export class Refusal {
  constructor({ status = 0, address = '', operation = '', times = 0, late = false } = {}) {
    this.status = status;
    this.address = address.toLowerCase();
    this.operation = operation.replace('com.microsoft:', '');
    this.left = times || Infinity;
    this.late = late;
  }

  // check carries out a request, or throws the refusal.
  check(address, operation, act = () => {}) {
    if (!this.#hits(address.toLowerCase(), operation.replace('com.microsoft:', ''))) return act();
    this.left--;
    if (this.late) unlessRefused(act);
    throw Refused.by(this.status, address, operation);
  }

  #hits(address, operation) {
    return this.status > 0 && this.left > 0 && [address, ''].includes(this.address) && [operation, ''].includes(this.operation);
  }
}

// unlessRefused carries out a request that may have been carried out before.
function unlessRefused(act) {
  try {
    act();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
  }
}

// after calls what when at least delay milliseconds have passed: a timer may fire early by the time since its turn of the event
// loop began.
function after(delay, what) {
  const due = performance.now() + delay;
  const check = () => {
    const left = due - performance.now();
    if (left > 0) setTimeout(check, Math.ceil(left));
    else what();
  };
  check();
}
