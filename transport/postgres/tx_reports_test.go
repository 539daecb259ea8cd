package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// A function of the database that changes settings of the session, which the text of the handler's
// statement does not show.
func TestSettingsThatAFunctionLeaves(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"URL", "a caller's pool"} {
		w := newBiz(t)
		w.exec(`CREATE FUNCTION %sleave(name text, value text, local bool) RETURNS void LANGUAGE plpgsql AS
			$$ BEGIN PERFORM set_config(name, value, local); END $$`)
		tr := Transport{URL: w.url, Schema: w.schema, MaxTx: 1}
		if pool != "URL" {
			tr = Transport{Pool: poolOf(t, w.url, 4, nil), Schema: w.schema, MaxTx: 1}
		}
		c, err := tr.Open(t.Context(), transport.Env{Endpoint: w.schema, Instance: "one"})
		ok(t, err)
		t.Cleanup(func() { ok(t, c.Close()) })
		r := receiver(t, c, "in")
		for i, setting := range [][2]string{{"default_transaction_read_only", "on"}, {"TimeZone", "Asia/Kolkata"}} {
			var pids [3]uint32
			for n, local := range []bool{true, false, true} {
				send(t, c, to("in", msg("1")))
				tx, user := begun(t, receive(t, r, 1)[0])
				pids[n] = user.Conn().PgConn().PID()
				var now string
				ok(t, user.QueryRow(t.Context(), `SELECT current_setting($1)`, setting[0]).Scan(&now))
				if now == setting[1] {
					t.Errorf("%s: %s is left", pool, setting[0])
				}
				ok(t, w.write(user, 10*i+n))
				_, err := user.Exec(t.Context(), `SELECT `+w.schema+`.leave($1, $2, $3)`, setting[0], setting[1], local)
				ok(t, err)
				ok(t, tx.Complete(t.Context(), nil))
			}
			if pids[0] != pids[1] && pool == "URL" || pids[1] == pids[2] {
				t.Errorf("%s: sessions %v, want another one after the second transaction", pool, pids)
			}
		}
	}
}
