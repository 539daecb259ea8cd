// The ready messages in the order of their arrival: a line of new ones, and a heap of returned ones, which are older.

import { READY } from './message.mjs';

export class Ready {
  #line = [];
  #head = 0;
  #returned = [];

  arrived(message) { this.#line.push(message); }

  returned(message) {
    const heap = this.#returned;
    let place = heap.length;
    while (place > 0) {
      const above = (place - 1) >> 1;
      if (heap[above].order <= message.order) break;
      heap[place] = heap[above];
      place = above;
    }
    heap[place] = message;
  }

  // first returns the next message, or undefined. It skips messages that were removed meanwhile.
  first() {
    while (this.#head < this.#line.length && !this.#waits(this.#line[this.#head])) this.#shift();
    while (this.#returned.length > 0 && !this.#waits(this.#returned[0])) this.#pop();
    const arrived = this.#line[this.#head];
    const returned = this.#returned[0];
    if (!arrived || !returned) return arrived ?? returned;
    return arrived.order < returned.order ? arrived : returned;
  }

  // take removes and returns the first message.
  take() {
    const message = this.first();
    if (message === undefined) return undefined;
    if (message === this.#returned[0]) this.#pop();
    else this.#shift();
    return message;
  }

  #waits(message) { return message.state === READY; }

  #shift() {
    this.#line[this.#head++] = undefined;
    if (this.#head > 1024 && this.#head * 2 > this.#line.length) {
      this.#line = this.#line.slice(this.#head);
      this.#head = 0;
    }
  }

  #pop() {
    const heap = this.#returned;
    const last = heap.pop();
    if (heap.length === 0) return;
    let place = 0;
    for (;;) {
      let below = 2 * place + 1;
      if (below >= heap.length) break;
      if (below + 1 < heap.length && heap[below + 1].order < heap[below].order) below++;
      if (heap[below].order >= last.order) break;
      heap[place] = heap[below];
      place = below;
    }
    heap[place] = last;
  }
}
