package drivertests

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// Behind a proxy that pools transactions, each library has a mode without prepared statements that
// outlive one.
func TestATransactionThroughPgBouncerIsOneToSendIn(t *testing.T) {
	t.Parallel()
	straight, pooled := brokertest.PgBouncer(t)
	s := openShop(t, straight, &postgres.Transport{URL: pooled, Pooled: true, ListenURL: straight})
	for name, open := range map[string]opener{
		"pgx":        openPool(pgx.QueryExecModeExec),
		"pgx stdlib": throughSQL(openPgx(pgx.QueryExecModeSimpleProtocol)),
		"lib/pq":     throughSQL(openPq("&binary_parameters=yes")),
		"pgdriver":   throughSQL(openPgdriver),
		"gorm":       openGorm(true, false),
		"bun":        openBun,
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			begin := open(t, pooled)
			for range 3 {
				tx := s.begin(begin, nil)
				must(t, s.send(tx.tx, "\x00'$1"))
				must(t, tx.commit())
				undone := s.begin(begin, nil)
				must(t, s.send(undone.tx, "undone"))
				must(t, undone.rollback())
			}
			s.arrives(begin, "\x00'$1", "\x00'$1", "\x00'$1")
		})
	}
}
