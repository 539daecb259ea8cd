package brokertest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP connection to a broker that fails on demand. Its methods may be called from any
// goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	links   map[*link]struct{}
	refuse  bool
	paused  bool
	delay   time.Duration
	cutAt   []byte
	cuts    int           // the number of further connections to be cut at it
	answers bool          // they are cut at the answer to it
	changed chan struct{} // closed when paused changes
	closed  bool
	total   int
}

// NewProxy listens on this machine and forwards connections to target, host:port. It ends with the
// test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", loopback(0))
	must(t, err)
	return newProxy(t, listener, target)
}

func newProxy(t testing.TB, listener net.Listener, target string) *Proxy {
	p := &Proxy{target: target, listener: listener, links: map[*link]struct{}{}, changed: make(chan struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the address of the proxy, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL returns broker with the proxy in place of its host.
func (p *Proxy) URL(t testing.TB, broker string) string {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal("proxy: not a URL")
	}
	u.Host = p.Addr()
	return u.String()
}

// Cut resets every connection, and forwards new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// Refuse resets every connection, and new ones too, until [Proxy.Resume].
func (p *Proxy) Refuse() {
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	p.Cut()
}

// Pause keeps all bytes in both directions until [Proxy.Resume], those of new connections
// too: to either side the other has become silent.
func (p *Proxy) Pause() { p.setPaused(true) }

// Delay forwards bytes that are read from now on after d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// CutAt resets that many connections over which a client sends text, before the text is forwarded.
// Resume does not end that. Text that the client sends in two pieces is not found.
func (p *Proxy) CutAt(text string, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt, p.cuts, p.answers = []byte(text), connections, false
}

// CutAtAnswer is CutAt, but text is forwarded, and the connection is reset when the broker answers.
// The answer is not forwarded.
func (p *Proxy) CutAtAnswer(text string, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt, p.cuts, p.answers = []byte(text), connections, true
}

// isCutAt reports whether a connection is to be cut because b was read from one side of it.
func (p *Proxy) isCutAt(l *link, from halfCloser, b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from == l.broker {
		return l.unanswered && len(b) > 0
	}
	if p.cuts == 0 || !bytes.Contains(b, p.cutAt) {
		return false
	}
	p.cuts--
	l.unanswered = p.answers
	return !p.answers
}

// Resume ends Refuse, Pause and Delay. Bytes that Pause kept are forwarded.
func (p *Proxy) Resume() {
	p.mu.Lock()
	p.refuse, p.delay = false, 0
	p.mu.Unlock()
	p.setPaused(false)
}

// Connections returns the number of connections so far, without refused ones.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

func (p *Proxy) setPaused(paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != paused {
		p.paused = paused
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client.(halfCloser)) }) //nolint:errcheck // all connections here are
	}
}

// halfCloser is a TCP connection, perhaps with TLS.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// link is a connection through the proxy.
type link struct {
	client, broker halfCloser
	cut            chan struct{}
	once           sync.Once
	unanswered     bool // the next answer cuts it; guarded by the proxy's mutex
}

func (l *link) reset() {
	l.once.Do(func() {
		close(l.cut)
		abort(l.client)
		abort(l.broker)
	})
}

// abort closes a connection, with a reset unless it has TLS.
func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) serve(client halfCloser) {
	broker, err := net.Dial("tcp", p.target)
	if err != nil {
		abort(client)
		return
	}
	l := &link{client: client, broker: broker.(halfCloser), cut: make(chan struct{})} //nolint:errcheck // as above
	if !p.add(l) {
		l.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, client, l.broker) })
	both.Go(func() { p.pass(l, l.broker, client) })
	both.Wait()
	_, _ = client.Close(), broker.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		return false
	}
	p.links[l] = struct{}{}
	p.total++
	return true
}

// pass copies one direction until its end, which it forwards too.
func (p *Proxy) pass(l *link, from, to halfCloser) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !p.hold(l) {
			return
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		if p.isCutAt(l, from, buf[:n]) {
			l.reset()
			return
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			l.reset()
			return
		}
	}
}

// hold waits for the end of a pause or a delay. It returns false when the link was cut meanwhile.
func (p *Proxy) hold(l *link) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-l.cut:
			return false
		}
	}
	for {
		p.mu.Lock()
		paused, changed := p.paused, p.changed
		p.mu.Unlock()
		if !paused {
			return true
		}
		select {
		case <-changed:
		case <-l.cut:
			return false
		}
	}
}
