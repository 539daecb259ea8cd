// Deadlines: one timer over a heap. An item has at most one deadline; setting and clearing it costs O(log n).

const LONGEST = 0x7fffffff; // the longest timeout of setTimeout

export class Deadlines {
  #heap = [];
  #timer;
  #timerAt = Infinity;

  // set calls item.expire(now) at a time in milliseconds since 1970, and not before.
  set(item, due) {
    if (!(due < Infinity)) return this.clear(item);
    item.due = due;
    if (item.place === undefined) {
      item.place = this.#heap.length;
      this.#heap.push(item);
    }
    this.#up(item.place);
    this.#down(item.place);
    this.#arm();
  }

  clear(item) {
    if (item.place === undefined) return;
    const place = item.place;
    const last = this.#heap.pop();
    item.place = undefined;
    if (last === item) return;
    this.#put(last, place);
    this.#up(place);
    this.#down(last.place);
  }

  close() {
    clearTimeout(this.#timer);
    for (const item of this.#heap) item.place = undefined;
    this.#heap = [];
  }

  #arm() {
    if (this.#heap.length === 0 || this.#heap[0].due >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = this.#heap[0].due;
    this.#timer = setTimeout(() => this.#fire(), Math.min(LONGEST, Math.max(0, Math.ceil(this.#timerAt - Date.now()))));
  }

  #fire() {
    this.#timerAt = Infinity;
    for (let now = Date.now(); this.#heap.length > 0 && this.#heap[0].due <= now; now = Date.now()) {
      const item = this.#heap[0];
      this.clear(item);
      item.expire(now);
    }
    this.#arm();
  }

  #put(item, place) {
    this.#heap[place] = item;
    item.place = place;
  }

  #up(place) {
    const item = this.#heap[place];
    while (place > 0) {
      const above = (place - 1) >> 1;
      if (this.#heap[above].due <= item.due) break;
      this.#put(this.#heap[above], place);
      place = above;
    }
    this.#put(item, place);
  }

  #down(place) {
    const item = this.#heap[place];
    for (;;) {
      let below = 2 * place + 1;
      if (below >= this.#heap.length) break;
      if (below + 1 < this.#heap.length && this.#heap[below + 1].due < this.#heap[below].due) below++;
      if (this.#heap[below].due >= item.due) break;
      this.#put(this.#heap[below], place);
      place = below;
    }
    this.#put(item, place);
  }
}
