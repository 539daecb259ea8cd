// The switches by which a test makes a namespace fail. Each is off until it is set.

import { Refused } from './refused.mjs';

export class Faults {
  refuseConnections = false;
  refuseLocks = false; // every settle and renewal is answered as lock lost
  refuseRenewals = false; // only renewals are
  throttle = 0; // this many requests are answered "server busy"
  unanswered = 0; // this many sends and settles are carried out, and the connection is cut instead of an answer
  delay = 0; // milliseconds before a send, a settle or a request is looked at
  symbolsOnly = false; // keys of an outcome's info map that are no symbols are left out of account
  silent = false; // nothing is answered or delivered any more, and connections stay
  management = new Refusal(); // of requests on $management
  claims = new Refusal(); // of tokens shown to $cbs
  links = new Refusal(); // of links, before they are attached
  sends = new Refusal(); // of what is sent on a link: by the operation send, or schedule where a message of it is delayed

  // set changes those that are named.
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (typeof this[name] !== typeof value) throw new Error(`there is no fault ${name} of ${JSON.stringify(value)}`);
      this[name] = this[name] instanceof Refusal ? new Refusal(value) : value;
    }
  }

  // busy takes one of the throttled requests.
  busy() { return this.#count('throttle'); }

  // cut takes one of the unanswered ones.
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

// A Refusal answers requests with a status: those for an address and of an operation, all where none is named. It ends after
// a number of times, and never where that is 0. Where it is late, the request is carried out all the same.
export class Refusal {
  constructor({ status = 0, address = '', operation = '', times = 0, late = false } = {}) {
    this.status = status;
    this.address = address.toLowerCase();
    this.operation = operation.replace('com.microsoft:', '');
    this.left = times || Infinity;
    this.late = late;
  }

  // check carries a request out, or throws the refusal.
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
