// Command walk counts the files and functions of the library that one message enters, from its
// receipt to its completion: the functions that each of some messages enters. A function that runs
// for the first message only, or now and then, does not count. "make house" builds the command with
// the counters of go build -cover.
//
//	walk [-outbox] [-list] -postgres URL
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime/coverage"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

const (
	queue    = "walk"
	messages = 4
	// A message is due delay after it is sent. The counters are cleared before that, after rest, in
	// which the endpoint comes to rest, and are read when the message is handled and settled.
	delay = 2 * time.Second
	rest  = delay - 200*time.Millisecond
	after = time.Second
	limit = time.Minute
)

// Step is the message.
type Step struct{ N int }

func main() {
	url := flag.String("postgres", "", "the `URL` of a database")
	outbox := flag.Bool("outbox", false, "the handler sends a message through an outbox")
	all := flag.Bool("list", false, "list the functions")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	entered, err := walk(ctx, *url, *outbox)
	if err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
	files := map[string]bool{}
	for _, at := range entered {
		file, _, _ := strings.Cut(at, ":")
		files[file] = true
		if *all {
			fmt.Println(at)
		}
	}
	fmt.Printf("outbox %t: one message enters %d functions in %d files\n",
		*outbox, len(entered), len(files))
}

// walk returns the functions that each message enters.
func walk(ctx context.Context, url string, outbox bool) (entered []string, err error) {
	handled := make(chan struct{}, messages)
	cfg := config(url, outbox, handled)
	e, err := endpoint.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-done)
	}()
	if err := e.WaitReady(ctx); err != nil {
		return nil, err
	}
	for n := range messages {
		one, err := step(ctx, cfg.Transport, handled)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			entered = one
		}
		entered = slices.DeleteFunc(entered, func(at string) bool { return !slices.Contains(one, at) })
	}
	return entered, nil
}

// step sends a message, and returns the functions that are entered while it is handled.
func step(ctx context.Context, t transport.Transport, handled <-chan struct{}) ([]string, error) {
	if err := send(ctx, t); err != nil {
		return nil, err
	}
	<-time.After(rest)
	if err := coverage.ClearCounters(); err != nil {
		return nil, fmt.Errorf("build with -cover -covermode=atomic and -coverpkg: %w", err)
	}
	select {
	case <-handled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	<-time.After(after)
	return functions()
}

func config(url string, outbox bool, handled chan<- struct{}) endpoint.Config {
	cfg := endpoint.Config{
		Name: queue, Transport: &postgres.Transport{URL: url}, Install: true,
		Logger:   slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[Step]("House.Step")},
	}
	handle := func(ctx context.Context, s *endpoint.Session, m Step) error {
		defer func() { handled <- struct{}{} }()
		if !outbox {
			return nil
		}
		return s.Send(ctx, m, endpoint.To("walk.next"))
	}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(handle)}
	if outbox {
		cfg.Outbox = &postgres.Transport{URL: url}
	}
	return cfg
}

// send sends the message for later, and makes the queue that a handler sends to.
func send(ctx context.Context, t transport.Transport) error {
	conn, err := t.Open(ctx, transport.Env{})
	if err != nil {
		return err
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: queue}, {Name: "walk.next"}}}
	err = conn.(transport.Installer).Install(ctx, plan) //nolint:errcheck // this driver can
	m := &transport.Message{ID: fmt.Sprint("walk-", time.Now().UnixNano()), Body: []byte(`{"N":1}`)}
	m.Headers.Set(header.EnclosedMessageTypes, "House.Step")
	m.Headers.Set(header.ContentType, "application/json")
	op := transport.Operation{Queue: queue, Message: m, After: delay}
	_, sent := conn.Dispatch(ctx, []transport.Operation{op})
	return errors.Join(err, sent, conn.Close())
}

// functions returns the places and names of the functions that were entered since the counters
// were cleared.
func functions() ([]string, error) {
	dir, err := os.MkdirTemp("", "walk-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder for temporary files
	if err := errors.Join(coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir)); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "tool", "covdata", "func", "-i="+dir) //nolint:gosec // a temporary folder
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var entered []string
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[2] == "0.0%" || fields[0] == "total" {
			continue
		}
		if !strings.Contains(fields[0], "/scripts/") {
			entered = append(entered, fields[0]+" "+fields[1])
		}
	}
	return entered, nil
}
