package acceptance_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

type orderEvent struct{ ID string }

type orderCancelled struct{ ID, Reason string }

func (m orderCancelled) About() string { return m.ID }

func (m *orderEvent) About() string { return "base " + m.ID }

func cancelling(broker transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := sales(broker, handlers...)
	cfg.Messages = append(cfg.Messages,
		endpoint.Event[orderCancelled]("Shop.OrderCancelled", "Shop.OrderEvent"), endpoint.Event[orderEvent]("Shop.OrderEvent"))
	return cfg
}

type placeOrder struct{ ID string }

type orderPlaced struct{ ID string }

type shipOrder struct{ ID string }

type orderAccepted struct{ ID string }

// messages are the types of the tests' little shop.
func messages() []endpoint.Message {
	return []endpoint.Message{
		endpoint.Command[placeOrder]("Shop.PlaceOrder"),
		endpoint.Event[orderPlaced]("Shop.OrderPlaced", "Shop.IOrderEvent"),
		endpoint.Command[shipOrder]("Shop.ShipOrder"),
		endpoint.Response[orderAccepted]("Shop.OrderAccepted"),
	}
}

// sales is a configuration to change; its handlers are the given ones.
func sales(t transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	return endpoint.Config{
		Name: "sales", Transport: t, Messages: messages(), Handlers: handlers, Install: true,
		Routes: []endpoint.Route{endpoint.RouteTo[shipOrder]("shipping"), endpoint.RouteTo[placeOrder]("sales")},
	}
}

// timeLimit bounds a wait for what does not come. A wait that takes long on a busy machine is no
// failure.
const timeLimit = 5 * time.Minute

// nextLook waits before a test looks again at a thing that announces no changes.
func nextLook(ctx context.Context) { _ = backoff.Sleep(ctx, 20*time.Millisecond) }

// logOf returns a logger whose last 200 lines are printed if the test fails.
func logOf(t *testing.T) *slog.Logger {
	lines := &lastLines{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the endpoint's log:\n%s", lines)
		}
	})
	return slog.New(slog.NewTextHandler(lines, nil))
}

// lastLines keeps the last 200 lines that are written, one a call.
type lastLines struct {
	mu    sync.Mutex
	lines [][]byte
}

func (l *lastLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 200 {
		l.lines = l.lines[1:]
	}
	l.lines = append(l.lines, bytes.Clone(line[:min(len(line), 1000)]))
	return len(line), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.Join(l.lines, nil))
}

// running is an endpoint that runs, within a synctest bubble or not.
type running struct {
	*endpoint.Endpoint
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

// start runs an endpoint until the end of the test. Without a logger of its own it has that of
// logOf.
func start(t *testing.T, cfg endpoint.Config) *running {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = logOf(t)
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, e)
}

func run(t *testing.T, e *endpoint.Endpoint) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Endpoint: e, t: t, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		cancel()
		t.Fatalf("the endpoint did not start: %v", err)
	}
	t.Cleanup(r.end)
	return r
}

// end stops the endpoint and waits for it; a second call does nothing.
func (r *running) end() {
	r.stop()
	if err, ok := <-r.done; ok {
		close(r.done)
		if err != nil {
			r.t.Errorf("the endpoint ended with %v", err)
		}
	}
}

func (r *running) send(m any, opts ...endpoint.SendOption) {
	r.t.Helper()
	if err := r.Send(r.t.Context(), m, opts...); err != nil {
		r.t.Fatal(err)
	}
}

type PlaceOrder struct{ OrderID string }

func (m PlaceOrder) Order() string { return m.OrderID }

var errNo = errors.New("the bank says no")

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// xmlSerializer says what it is called.
type xmlSerializer struct{ name string }

func (s xmlSerializer) ContentType() string { return s.name }

func (xmlSerializer) Marshal(v any) ([]byte, error) { return xml.Marshal(v) }

func (xmlSerializer) Unmarshal(body []byte, v any) error { return xml.Unmarshal(body, v) }

// onDispatch is a Dispatch stage with one behavior, for what belongs to a received message.
func onDispatch(f func(next func() error) error) (s pipeline.Stage[*pipeline.Dispatch]) {
	s.Use("test", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			if d.Incoming == nil {
				return next(ctx, d)
			}
			return f(func() error { return next(ctx, d) })
		}
	})
	return s
}

// addressOn returns the address of a queue for other programs.
func addressOn(t *testing.T, broker transport.Transport, queue string) string {
	t.Helper()
	conn, err := broker.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if a, ok := conn.(transport.Addresser); ok {
		return a.Address(queue)
	}
	return queue
}
