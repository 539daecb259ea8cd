package inmemory

// list is a doubly linked list of items, ordered by seq as long as only new items are
// appended. An item is in one list at most.
type list struct {
	first, last *item
	len         int
}

func (l *list) append(it *item) { l.insert(it, l.last) }

// restore inserts an item by its seq. Returned items are older than most of the list, so the search
// is short.
func (l *list) restore(it *item) {
	var after *item
	for next := l.first; next != nil && next.seq < it.seq; next = next.next {
		after = next
	}
	l.insert(it, after)
}

// insert inserts an item after another one, or first if that is nil.
func (l *list) insert(it, after *item) {
	it.list = l
	it.prev = after
	if after == nil {
		it.next, l.first = l.first, it
	} else {
		it.next, after.next = after.next, it
	}
	if it.next == nil {
		l.last = it
	} else {
		it.next.prev = it
	}
	l.len++
}

// within returns how many of the first items, up to limit, have at most maxBytes bytes in total: at
// least 1 if there is one.
func (l *list) within(limit int, maxBytes int64) int {
	n := 0
	for it := l.first; it != nil && n < limit; it = it.next {
		if maxBytes -= int64(len(it.message.Body) + it.message.Headers.Size()); maxBytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}

func (l *list) remove(it *item) {
	if it.prev == nil {
		l.first = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.last = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.list, it.prev, it.next = nil, nil, nil
	l.len--
}

// timed is a heap of items by due time, and by seq among equal ones.
type timed []*item

func (h timed) Len() int { return len(h) }

func (h timed) Less(i, j int) bool {
	if c := h[i].due.Compare(h[j].due); c != 0 {
		return c < 0
	}
	return h[i].seq < h[j].seq
}

func (h timed) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i+1, j+1
}

func (h *timed) Push(x any) {
	it := x.(*item) //nolint:errcheck // heap.Push is called with items only
	*h = append(*h, it)
	it.heapIndex = len(*h)
}

func (h *timed) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	it.heapIndex = 0
	return it
}
