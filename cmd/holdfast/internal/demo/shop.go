package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Wire names of the messages.
const (
	placeOrderType  = "Shop.PlaceOrder"
	orderPlacedType = "Shop.OrderPlaced"
	importType      = "Demo.ImportLines"
)

// lineHeader carries the line of the input that a message is about.
const lineHeader = "Demo.Line"

// concurrency is how many messages each endpoint handles at once.
const concurrency = 4

// shop makes the endpoints.
type shop struct {
	input     *Input
	ledger    *ledger
	transport transport.Transport
	mode      endpoint.TransactionMode
	work      time.Duration // how long a handler pretends to work
	log       *slog.Logger
}

// config is what all endpoints have in common.
func (s *shop) config(name string, handlers ...endpoint.Handler) endpoint.Config {
	cfg := endpoint.Config{
		Name: name, Transport: s.transport, Transactions: s.mode, Concurrency: concurrency,
		Recoverability: retries, Install: true, StopTimeout: 5 * time.Second, Logger: s.log.With("endpoint", name),
		Handlers: handlers,
		Messages: []endpoint.Message{
			endpoint.Command[Order](placeOrderType),
			endpoint.Event[OrderPlaced](orderPlacedType),
		},
	}
	cfg.Pipeline.Recover.Use("ledger", s.recordFailure(name))
	return cfg
}

// sales takes orders in, and publishes those that are sound.
func (s *shop) sales() (*endpoint.Endpoint, error) {
	return endpoint.New(s.config(sales, endpoint.Handle(func(ctx context.Context, se *endpoint.Session, o *Order) error {
		if err := o.validate(); err != nil {
			return recoverability.Unrecoverable(err) // trying again would not mend it
		}
		if err := s.toil(ctx, se, sales, o.OrderID); err != nil {
			return err
		}
		placed := OrderPlaced{
			OrderID: o.OrderID, CustomerID: o.Customer.ID, Country: o.ShipTo.Country,
			Currency: o.Currency, Amount: o.Total,
		}
		err := se.Publish(ctx, placed,
			endpoint.MessageID(se.MessageID()+"-placed"), endpoint.Header(lineHeader, se.Header(lineHeader)))
		if err != nil {
			return err
		}
		return s.recordSuccess(ctx, se, sales, placed)
	})))
}

// billing and shipping do their part for every order that was placed.
func (s *shop) subscriber(name string) (*endpoint.Endpoint, error) {
	return endpoint.New(s.config(name, endpoint.Handle(func(ctx context.Context, se *endpoint.Session, o *OrderPlaced) error {
		if err := s.toil(ctx, se, name, o.OrderID); err != nil {
			return err
		}
		return s.recordSuccess(ctx, se, name, *o)
	})))
}

// toil is the work of a handler: it takes its time, and fails as is the order's fate.
func (s *shop) toil(ctx context.Context, se *endpoint.Session, name, orderID string) error {
	if err := backoff.Sleep(ctx, s.work); err != nil {
		return err
	}
	delayed, _ := strconv.Atoi(se.Header(header.Retries))
	return trouble(name, orderID, se.Attempt().N, delayed)
}

// recordSuccess writes into the ledger that the message is done with.
func (s *shop) recordSuccess(ctx context.Context, se *endpoint.Session, name string, o OrderPlaced) error {
	line, err := strconv.Atoi(se.Header(lineHeader))
	if err != nil {
		return fmt.Errorf("header %s: %w", lineHeader, err)
	}
	return s.ledger.record(ctx, se, entry{
		line: line, endpoint: name, outcome: processed, retries: se.Attempt().N - 1,
		currency: o.Currency, amount: o.Amount,
	})
}

// recordFailure is a behavior that writes into the ledger, in the same transaction, when a
// message is delayed or moved to the error queue. What is tried again at once is still here.
func (s *shop) recordFailure(name string) pipeline.Behavior[*pipeline.Recover] {
	return func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
		return func(ctx context.Context, r *pipeline.Recover) error {
			if e, ended := failure(name, r); ended {
				se, ok := r.Sender().(txer)
				if !ok {
					return fmt.Errorf("%T gives no transaction", r.Sender())
				}
				if err := s.ledger.record(ctx, se, e); err != nil {
					return err
				}
			}
			return next(ctx, r)
		}
	}
}

// failure is the entry for a message that leaves its queue because it failed, and whether
// it does.
func failure(name string, r *pipeline.Recover) (e entry, ended bool) {
	e = entry{endpoint: name, retries: r.Failure.Attempt - 1, reason: oneLine(r.Failure.Err)}
	switch r.Action.(type) {
	case recoverability.Delay:
		e.outcome = delayed
	case recoverability.MoveToError:
		e.outcome = failed
	default:
		return entry{}, false
	}
	var o OrderPlaced
	if r.Headers.Get(header.EnclosedMessageTypes) == orderPlacedType && json.Unmarshal(r.Body, &o) == nil {
		e.currency, e.amount = o.Currency, o.Amount
	}
	line, err := strconv.Atoi(r.Headers.Get(lineHeader))
	if err == nil { // else it is 0: a message that nobody here has sent
		e.line = line
	}
	return e, true
}
