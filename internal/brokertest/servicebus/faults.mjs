// The switches by which a test makes a namespace fail. Each is off until it is set.

export class Faults {
  refuseConnections = false;
  refuseLocks = false; // every settle and renewal is answered as lock lost
  refuseRenewals = false; // only renewals are
  throttle = 0; // this many requests are answered "server busy"
  unanswered = 0; // this many sends and settles are carried out, and the connection is cut instead of an answer
  delay = 0; // milliseconds before a send, a settle or a request is looked at
  silent = false; // nothing is answered or delivered any more, and connections stay

  // set changes those that are named.
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (typeof this[name] !== typeof value) throw new Error(`there is no fault ${name} of ${JSON.stringify(value)}`);
      this[name] = value;
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

  // later does something after the delay, at once when there is none.
  later(what) {
    if (this.silent) return;
    if (this.delay > 0) setTimeout(what, this.delay + 1); // a timer may fire up to a millisecond early
    else what();
  }
}
