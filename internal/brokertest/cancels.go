package brokertest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// cancelRequest is the code of a connection that only asks for another one's statement to be cancelled
// (PostgreSQL 15, "Message Formats").
const cancelRequest = 80877102

// withoutCancels is a way to a server of PostgreSQL's protocol at addr that leaves out requests to cancel.
func withoutCancels(t testing.TB, addr string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cancelFilter{addr: addr, open: map[net.Conn]bool{}}
	w.tasks.Go(func() { w.accept(listener) })
	t.Cleanup(func() {
		_ = listener.Close()
		w.close()
	})
	return listener.Addr().String()
}

type cancelFilter struct {
	addr  string
	tasks sync.WaitGroup

	mu   sync.Mutex // guards open
	open map[net.Conn]bool
	over bool
}

func (w *cancelFilter) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		w.tasks.Go(func() { w.serve(client) })
	}
}

// serve passes on what comes from client, if it is no request to cancel.
func (w *cancelFilter) serve(client net.Conn) {
	defer w.keep(client)()
	first, err := startup(client)
	if err != nil || binary.BigEndian.Uint32(first[4:]) == cancelRequest {
		return
	}
	server, err := net.Dial("tcp", w.addr)
	if err != nil {
		return
	}
	defer w.keep(server)()
	if _, err := server.Write(first); err != nil {
		return
	}
	w.tasks.Go(func() {
		_, _ = io.Copy(server, client) // either end ends both
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
}

// maxStartup is how long the message may be that begins a connection.
const maxStartup = 10_000

// startup reads the message in front of all others: four bytes of its length, a code, and the rest. pgbouncer wants it whole.
func startup(client net.Conn) ([]byte, error) {
	first := make([]byte, 8, maxStartup)
	if _, err := io.ReadFull(client, first); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(first)
	if size < 8 || size > maxStartup {
		return nil, errors.New("no message of PostgreSQL's protocol")
	}
	first = first[:size]
	_, err := io.ReadFull(client, first[8:])
	return first, err
}

// keep has c closed with the filter at the latest, or by what it returns.
func (w *cancelFilter) keep(c net.Conn) (closed func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = true
	if w.over {
		_ = c.Close()
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, c)
		_ = c.Close()
	}
}

func (w *cancelFilter) close() {
	w.mu.Lock()
	w.over = true
	for c := range w.open {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.tasks.Wait()
}
