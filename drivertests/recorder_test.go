package drivertests

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// recorder is a proxy in front of PostgreSQL that records the statements which its clients execute.
type recorder struct {
	address string
	mu      sync.Mutex // guards all
	all     []string
}

// record starts a recorder for the server of database.
func record(t *testing.T, database string) *recorder {
	t.Helper()
	to, err := url.Parse(database)
	must(t, err)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	r := &recorder{address: listener.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			var dialer net.Dialer
			server, err := dialer.DialContext(t.Context(), "tcp", to.Host)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() {
				_, _ = io.Copy(client, server) // an end of either connection ends both
				_ = client.Close()
			})
			running.Go(func() {
				_ = r.forward(client, server)
				_ = server.Close()
			})
		}
	})
	return r
}

// url returns the URL of database through the recorder.
func (r *recorder) url(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	must(t, err)
	u.Host = r.address
	return u.String()
}

// take returns the statements since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

func (r *recorder) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, text)
}

// forward copies the messages of a client (PostgreSQL 15, "Message Formats"): each has its type,
// except the first, and its length.
func (r *recorder) forward(client io.Reader, server io.Writer) error {
	prepared, portals := map[string]string{}, map[string]string{} // texts by name
	for first := true; ; first = false {
		var kind []byte
		if !first {
			kind = make([]byte, 1)
		}
		size := make([]byte, 4)
		for _, part := range [][]byte{kind, size} {
			if _, err := io.ReadFull(client, part); err != nil {
				return err
			}
		}
		content := make([]byte, binary.BigEndian.Uint32(size)-4)
		if _, err := io.ReadFull(client, content); err != nil {
			return err
		}
		texts := bytes.SplitN(content, []byte{0}, 3)
		switch string(kind) {
		case "Q":
			r.add(string(texts[0]))
		case "P":
			prepared[string(texts[0])] = string(texts[1])
		case "B":
			portals[string(texts[0])] = prepared[string(texts[1])]
		case "E":
			r.add(portals[string(texts[0])])
		}
		if _, err := server.Write(append(append(kind, size...), content...)); err != nil {
			return err
		}
	}
}
