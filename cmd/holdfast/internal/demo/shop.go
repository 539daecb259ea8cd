package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Names of the endpoints, which are those of their queues, and of the error queue; of the message
// types, and of the header with the line that a message is about.
const (
	sales, billing, shipping = "sales", "billing", "shipping"
	errorQueue               = "error"
	placeOrderType           = "Shop.PlaceOrder"
	orderPlacedType          = "Shop.OrderPlaced"
	lineHeader               = "Demo.Line"
)

// handling are the endpoints that handle orders, in the order of the reports.
var handling = []string{sales, billing, shipping}

// OrderPlaced is the event that sales publishes for every order that it accepts.
type OrderPlaced struct {
	OrderID  string `json:"orderId"`
	Currency string `json:"currency"`
	Amount   Amount `json:"amount"`
}

// retries have shorter delays than the defaults, for a user who watches.
var retries = recoverability.Config{
	Immediate: 2, Delayed: 2, Delays: recoverability.Delays{Delay: time.Second}, ErrorQueue: errorQueue,
}

// Numbers of attempts of an order that fail at an endpoint. After three, the first delayed retry
// succeeds.
const succeeds, failsOnce, failsForAWhile, failsAlways = 0, 1, 3, math.MaxInt

// failures are the error of an endpoint, and how many orders of a thousand fail, as growing bounds.
var failures = map[string]struct {
	why                 string
	once, while, always uint32
}{
	sales:    {"stock service: connection reset", 30, 30, 30},
	billing:  {"payment provider: timed out", 60, 85, 95},
	shipping: {"carrier: no label printed", 40, 70, 78},
}

// failsOf returns how many attempts of an order fail at an endpoint. It follows from the id of the
// order alone, so it is the same in every run and in the proof.
func failsOf(endpoint, orderID string) int {
	h, f := fnv.New32a(), failures[endpoint]
	fmt.Fprintf(h, "%s/%s", endpoint, orderID)
	switch dice := h.Sum32() % 1000; {
	case dice < f.once:
		return failsOnce
	case dice < f.while:
		return failsForAWhile
	case dice < f.always:
		return failsAlways
	}
	return succeeds
}

// failure returns the error of an attempt, nil for success. Attempts count from 1 after each
// delayed retry.
func failure(endpoint, orderID string, attempt, delayed int) error {
	// Three attempts precede a delayed retry.
	if min(attempt, 3)+3*delayed > failsOf(endpoint, orderID) {
		return nil
	}
	return fmt.Errorf("%s (order %s)", failures[endpoint].why, orderID)
}

// config returns the configuration of an endpoint with a handler.
func (d *demo) config(name string, handler endpoint.Handler) endpoint.Config {
	cfg := endpoint.Config{
		Name: name, Transport: d.transport, Concurrency: 4, Recoverability: retries, Install: true,
		StopTimeout: 5 * time.Second, Logger: d.Log.With("endpoint", name), Handlers: []endpoint.Handler{handler},
		Messages: []endpoint.Message{endpoint.Command[Order](placeOrderType), endpoint.Event[OrderPlaced](orderPlacedType)},
	}
	if d.Path != "" {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	cfg.Pipeline.Recover.Use("ledger", d.recordFailure(name))
	return cfg
}

// sales publishes the orders that are valid.
func (d *demo) sales() endpoint.Config {
	return d.config(sales, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o *Order) error {
		if err := o.validate(); err != nil {
			return recoverability.Unrecoverable(err)
		}
		placed := OrderPlaced{o.OrderID, o.Currency, o.Total}
		if err := d.work(ctx, s, sales, placed); err != nil {
			return err
		}
		return s.Publish(ctx, placed,
			endpoint.MessageID(s.MessageID()+"-placed"), endpoint.Header(lineHeader, s.Header(lineHeader)))
	}))
}

// subscriber is billing or shipping.
func (d *demo) subscriber(name string) endpoint.Config {
	return d.config(name, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o *OrderPlaced) error {
		return d.work(ctx, s, name, *o)
	}))
}

// work takes its time, fails as the order's outcome says, and records a success.
func (d *demo) work(ctx context.Context, s *endpoint.Session, name string, o OrderPlaced) error {
	if err := backoff.Sleep(ctx, d.Work); err != nil {
		return err
	}
	delayed, _ := strconv.Atoi(s.Header(header.Retries)) // 0 without one
	if err := failure(name, o.OrderID, s.Attempt().N, delayed); err != nil {
		return err
	}
	return d.ledger.record(ctx, s, name, processed, o, "")
}

// recordFailure returns a behavior that records a message which is delayed or moved to the error
// queue.
func (d *demo) recordFailure(name string) pipeline.Behavior[*pipeline.Recover] {
	return func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
		return func(ctx context.Context, r *pipeline.Recover) error {
			outcome := failed
			switch r.Action.(type) {
			case recoverability.Delay:
				outcome = delayed
			case recoverability.MoveToError:
			default: // the message stays in its queue
				return next(ctx, r)
			}
			var o OrderPlaced // zero at sales
			if r.Headers.Get(header.EnclosedMessageTypes) == orderPlacedType {
				_ = json.Unmarshal(r.Body, &o)
			}
			s := r.Sender().(*endpoint.Session) //nolint:errcheck // always one
			if err := d.ledger.record(ctx, s, name, outcome, o, oneLine(r.Failure.Err)); err != nil {
				return err
			}
			return next(ctx, r)
		}
	}
}

// importLines sends all lines to sales and records that, in one transaction, unless another process
// has done so. In memory they are sent before the commit.
func (d *demo) importLines(ctx context.Context) error {
	var ops []transport.Operation
	for _, line := range d.input.Lines {
		no := strconv.Itoa(line.No)
		m := &transport.Message{ID: d.input.Hash + "-" + no, Body: line.Text}
		m.Headers = header.New(
			header.Field{Name: header.MessageID, Value: m.ID},
			header.Field{Name: header.MessageIntent, Value: header.IntentSend},
			header.Field{Name: header.ContentType, Value: "application/json"},
			header.Field{Name: header.EnclosedMessageTypes, Value: placeOrderType},
			header.Field{Name: lineHeader, Value: no},
		)
		ops = append(ops, transport.Operation{Message: m, Queue: sales})
	}
	tx, err := d.ledger.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	first, err := tx.ExecContext(ctx, `update demo_run set imported = lines where imported = 0`)
	if err != nil {
		return err
	}
	if n, err := first.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if t, ok := d.conn.(transport.TxDispatcher); ok {
		_, err = t.DispatchIn(ctx, tx, ops)
	} else {
		_, err = d.conn.Dispatch(ctx, ops)
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}
