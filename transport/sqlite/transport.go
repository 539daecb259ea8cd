package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*Transport)(nil)

// Transport is the transport on a file. Only Path is required. It may be copied before use, and
// opened several times, also at once.
type Transport struct {
	// Path is the path of the database file. The file is created if it is missing; its directory
	// must exist. Required.
	Path string
	// Lease is the time for which a received message is invisible to other receivers, unless the
	// lease is renewed. When a process crashes, its messages are delivered again after this time.
	// 0: 30 s.
	Lease time.Duration
	// Relaxed makes commits return before they are on disk, which is many times faster for one
	// message at a time. After a power failure or a crash of the operating system the file is
	// consistent, but the last commits may be undone: the last messages sent are lost, and the last
	// messages completed are delivered again. A killed process loses nothing.
	Relaxed bool
}

// System returns "sqlite".
func (*Transport) System() string { return "sqlite" }

// Open implements [transport.Transport]. It opens the file, and creates or migrates the tables. It
// waits for other processes that do so, until ctx ends.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if t.Lease < 0 {
		return nil, fmt.Errorf("sqlite: Lease %v may not be negative", t.Lease)
	}
	s, err := open(ctx, t.Path, t.Relaxed)
	if err != nil {
		return nil, err
	}
	s.writer.log, s.clock.Log = env.Log(), env.Log()
	// With one flusher all units that arrive during a commit are one batch, which makes the fewest
	// commits.
	return tablequeue.Open(s.parts(), tablequeue.Config{Lease: t.Lease, Flushers: 1, Env: env}), nil
}

// ParseURL returns the transport of a URL: sqlite:orders.db is a file in the working directory, and
// sqlite:///var/lib/orders.db an absolute path. The options lease and relaxed set the fields of
// those names; an unknown one is an error that names it.
func ParseURL(raw string) (_ *Transport, err error) {
	defer func() { err = failed(err, "parse the URL") }()
	scheme, rest, _ := strings.Cut(raw, ":")
	if !strings.EqualFold(scheme, "sqlite") {
		return nil, errors.New("unknown scheme: want sqlite:orders.db")
	}
	path, options, _ := strings.Cut(rest, "?")
	path = strings.TrimPrefix(path, "//") // sqlite:///absolute and sqlite://relative are common too
	if path == "" {
		return nil, errors.New("no file, as in sqlite:orders.db")
	}
	t := &Transport{Path: path}
	own := dialect.Options{"lease": &t.Lease, "relaxed": &t.Relaxed}
	query, err := own.Take(options)
	if err != nil {
		return nil, err
	}
	if err := own.Check(maps.Keys(query), nil); err != nil {
		return nil, err
	}
	return t, nil
}
