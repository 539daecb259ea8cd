package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

const sendHelp = `Send raw bodies to a queue, with the headers that an endpoint would write.

The body comes from --file or from standard input and is sent unchanged. It should be JSON, but is not checked. With
--jsonl every line is a message; empty lines are skipped.`

const sendExample = `  echo '{"orderId":"4711"}' | holdfast send --transport sqlite:orders.db --to sales --type Shop.PlaceOrder
  holdfast send --to sales --type Shop.PlaceOrder --file orders.jsonl --jsonl
  holdfast send --to sales --type Shop.PlaceOrder --file order.json --count 1000 --after 1m`

// sendBatch is the number of messages that are sent at once.
const sendBatch = 100

// maxLine bounds a line of --jsonl, in bytes.
const maxLine = 64 << 20

// sending holds the flags of send.
type sending struct {
	to, typeName, file string
	headers            []string
	count              int
	after              time.Duration
	jsonl, create      bool
	asJSON             bool

	driver driver
	extra  header.Map // headers, parsed
	batch  []transport.Operation
	sent   int
}

// sendCommands are the command that sends messages.
type sendCommands struct{ *app }

func (a *sendCommands) sendCommand() *cobra.Command {
	var s sending
	cmd := &cobra.Command{
		Use:     "send --to QUEUE --type NAME",
		Short:   "Send messages to a queue",
		Long:    sendHelp,
		Example: sendExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.send(cmd.Context(), &s) },
	}
	flags := cmd.Flags()
	flags.StringVar(&s.to, "to", "", "`queue` to send to (required)")
	flags.StringVar(&s.typeName, "type", "", "`name` of the message type on the wire, such as Shop.PlaceOrder (required)")
	flags.StringArrayVar(&s.headers, "header", nil, "one more header, as `name=value`; may be repeated")
	flags.StringVar(&s.file, "file", "-", "`file` with the body; - is standard input")
	flags.BoolVar(&s.jsonl, "jsonl", false, "send every line as a message of its own")
	flags.IntVar(&s.count, "count", 1, "how often each body is sent")
	flags.DurationVar(&s.after, "after", 0, "deliver no earlier than this from now, such as 90s")
	flags.BoolVar(&s.create, "create", false, "create the queue where it is missing")
	flags.BoolVar(&s.asJSON, "json", false, "print JSON")
	return cmd
}

func (a *sendCommands) send(ctx context.Context, s *sending) error {
	if err := s.check(); err != nil {
		return err
	}
	err := a.sendInput(ctx, s)
	if errors.Is(err, transport.ErrNoQueue) {
		err = fmt.Errorf("%w: --create creates it", err)
	}
	if err != nil {
		return fmt.Errorf("send to %q: %w (%d sent)", s.to, err, s.sent)
	}
	if s.asJSON {
		return json.NewEncoder(a.out).Encode(map[string]any{"queue": s.to, "sent": s.sent})
	}
	fmt.Fprintf(a.out, "sent %d to %s\n", s.sent, s.to)
	return nil
}

// sendInput sends the messages of the file.
func (a *sendCommands) sendInput(ctx context.Context, s *sending) (err error) {
	var in io.ReadCloser
	if s.file == "-" {
		in = interruptible(ctx, a.in)
	} else if in, err = os.Open(s.file); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	endpoint := programName
	if s.create { // the queue of that endpoint
		t, err := a.target()
		if err != nil {
			return err
		}
		endpoint, s.driver = s.to, t.driver
	}
	return with(ctx, a.app, endpoint, "send", func(conn transport.Conn) error {
		if most := conn.Limits().MaxDelay; s.after > most {
			return fmt.Errorf("--after %v: the transport delays by %v at most", s.after, most)
		}
		if s.create {
			if err := install(ctx, s.driver, conn, queuePlan(s.to)); err != nil {
				return err
			}
		}
		return s.run(ctx, conn, in)
	})
}

// interruptible returns a reader that fails when ctx ends, also while r blocks.
func interruptible(ctx context.Context, r io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, r) // may stay: a read from a terminal cannot be cancelled
		in.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { in.CloseWithError(context.Cause(ctx)) })
	return out
}

func (s *sending) check() error {
	switch {
	case s.count < 1:
		return usagef("--count %d: must be at least 1", s.count)
	case s.after < 0:
		return usagef("--after %v: must not be negative", s.after)
	case s.to == "" || s.typeName == "":
		return usagef("--to and --type are required")
	}
	for _, h := range s.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return usagef("--header %q: want name=value", h)
		}
		s.extra.Set(name, value)
	}
	return nil
}

// run sends the input: all of it as one body, or each line.
func (s *sending) run(ctx context.Context, conn transport.Conn, in io.Reader) error {
	if !s.jsonl {
		body, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(body)) == 0 {
			return errors.New("the body is empty")
		}
		if err := s.add(ctx, conn, body); err != nil {
			return err
		}
		return s.dispatch(ctx, conn)
	}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		if line := bytes.TrimSpace(scanner.Bytes()); len(line) > 0 {
			if err := s.add(ctx, conn, bytes.Clone(line)); err != nil {
				return err
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	return s.dispatch(ctx, conn)
}

// add adds a body s.count times to the batch, which is sent when it is full.
func (s *sending) add(ctx context.Context, conn transport.Conn, body []byte) error {
	for range s.count {
		s.batch = append(s.batch, s.operation(body, time.Now()))
		if len(s.batch) == sendBatch {
			if err := s.dispatch(ctx, conn); err != nil {
				return err
			}
		}
	}
	return nil
}

// dispatch sends the batch and counts the messages that were sent for certain.
func (s *sending) dispatch(ctx context.Context, conn transport.Conn) error {
	if len(s.batch) == 0 {
		return nil
	}
	_, err := conn.Dispatch(ctx, s.batch)
	if err == nil {
		s.sent += len(s.batch)
	} else if failed, ok := errors.AsType[*transport.DispatchError](err); ok {
		s.sent += len(s.batch) - len(failed.Ops)
	}
	s.batch = s.batch[:0]
	return err
}

// operation returns a message as an endpoint of the name "holdfast" sends it.
func (s *sending) operation(body []byte, now time.Time) transport.Operation {
	id := uuid.New(now)
	var h header.Map
	h.Reserve(12 + s.extra.Len())
	h.Set(header.MessageID, id)
	h.Set(header.CorrelationID, id)
	h.Set(header.ConversationID, uuid.New(now))
	h.Set(header.MessageIntent, header.IntentSend)
	h.Set(header.OriginatingEndpoint, programName)
	h.Set(header.OriginatingMachine, machineName())
	h.Set(header.TimeSent, header.FormatTime(now))
	h.Set(header.ContentType, "application/json")
	h.Set(header.EnclosedMessageTypes, s.typeName)
	if s.after > 0 {
		h.Set(header.DeliverAt, header.FormatTime(now.Add(s.after)))
	}
	for name, value := range s.extra.All() {
		h.Set(name, value)
	}
	return transport.Operation{
		Message: &transport.Message{ID: h.Get(header.MessageID), Headers: h, Body: body}, Queue: s.to, After: s.after,
	}
}
