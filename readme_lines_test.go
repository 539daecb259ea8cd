package holdfast_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/telemetry/otel"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

type (
	PlaceOrder  struct{ ID string }
	OrderPlaced struct{ ID string }
	OrderPaid   struct{ ID string }
	RemindBuyer struct{ ID string }
	BuildReport struct{}
	order       struct{ ID string }
)

// readmeConfig and readmeSends have the lines of code that README.md shows, so that the compiler
// checks each line. Nothing calls them.
var _, _ = readmeConfig, readmeSends

func readmeConfig(url string, pool *pgxpool.Pool) (endpoint.Config, any, any) {
	config := endpoint.Config{
		Transport: &rabbitmq.Transport{URL: url},
		Recoverability: recoverability.Config{
			RateLimit: recoverability.RateLimit{After: 20, Delay: 10 * time.Second},

			Quarantine: recoverability.Quarantine{After: 6, Crashes: 3},
		},
		Outbox: &postgres.Transport{Pool: pool},
		Messages: []endpoint.Message{
			endpoint.Event[OrderPaid]("Shop.OrderPaid", "Shop.OrderEvent"),
		},
	}
	other := endpoint.Config{
		Transactions: endpoint.SendsAtomicWithReceive,

		Recoverability: recoverability.Config{Immediate: 3, Delayed: 5},
	}
	otel.Instrument(&config, otel.Options{})
	placed := func(context.Context, *saga.Context[order], PlaceOrder) error { return nil }
	step := saga.Start(func(m PlaceOrder) string { return m.ID }, placed)
	report := schedule.Schedule{Name: "report", Cron: "30 2 * * *", Message: BuildReport{}}
	return other, step, report
}

func readmeSends(
	ctx context.Context, s *endpoint.Session, sales *endpoint.Endpoint, id string,
) (pgx.Tx, error) {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return nil, err
	}
	err = sales.Publish(ctx, OrderPlaced{ID: id}, endpoint.In(tx))
	if err != nil {
		return nil, err
	}
	err = s.SendLocal(ctx, RemindBuyer{ID: id}, endpoint.After(24*time.Hour))
	return tx, err
}
