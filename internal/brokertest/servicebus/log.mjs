// All messages of a queue in the order of their sequence numbers, whatever their state, for browsing and finding by number.

export class Log {
  #by = new Map();
  #order = [];

  get size() { return this.#by.size; }

  add(message) {
    this.#by.set(message.sequence, message);
    this.#order.push(message);
  }

  get(sequence) { return this.#by.get(sequence); }

  remove(message) {
    if (!this.#by.delete(message.sequence)) return;
    if (this.#order.length > 1024 && this.#order.length > 2 * this.#by.size) this.#order = [...this];
  }

  // from yields messages from a sequence number on.
  * from(sequence) {
    const order = this.#order;
    let low = 0;
    for (let high = order.length; low < high;) {
      const middle = (low + high) >> 1;
      if (order[middle].sequence < sequence) low = middle + 1;
      else high = middle;
    }
    for (; low < order.length; low++) {
      if (this.#by.get(order[low].sequence) === order[low]) yield order[low];
    }
  }

  // seen yields the messages for a request to peek.
  seen(sequence) { return this.from(sequence); }

  [Symbol.iterator]() { return this.from(0); }
}
