package postgres

import (
	"bytes"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-go/holdfast/transport"
)

// greeter is a server that answers the statements of a new connection.
type greeter struct {
	encoding, path, limit string
	shadow                string // the answer to askShadows; "" for none
	refusal               string // of BEGIN; "" for none
}

// serve listens until the test is over, and returns a URL.
func (g greeter) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	var served sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		served.Wait()
	})
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { g.answer(c) })
		}
	})
	return "postgres://app@" + l.Addr().String() + "/shop?sslmode=disable"
}

// answer answers simple queries until the connection ends.
func (g greeter) answer(c net.Conn) {
	defer c.Close()
	b := pgproto3.NewBackend(c, c)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	b.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	for {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		asked, err := b.Receive()
		q, isQuery := asked.(*pgproto3.Query)
		if err != nil || !isQuery {
			return
		}
		switch {
		case strings.Contains(q.String, "current_database"):
			row(b, "shop", "1", "read committed", g.encoding, g.path, "app", g.limit)
		case strings.Contains(q.String, "before"):
			if g.shadow == "" {
				row(b)
			} else {
				row(b, g.shadow)
			}
		case g.refusal != "":
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: g.refusal})
			_ = b.Flush()
			return
		default:
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(q.String))})
		}
	}
}

// row answers with one row of texts, or none.
func row(b *pgproto3.Backend, texts ...string) {
	var columns []pgproto3.FieldDescription
	var values [][]byte
	for _, text := range texts {
		oid := uint32(25) // text
		if _, err := strconv.Atoi(text); err == nil {
			oid = 20 // bigint
		}
		columns = append(columns, pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: oid, DataTypeSize: -1, TypeModifier: -1})
		values = append(values, []byte(text))
	}
	if len(texts) == 0 {
		columns = []pgproto3.FieldDescription{{Name: []byte("c"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1}}
	}
	b.Send(&pgproto3.RowDescription{Fields: columns})
	if len(texts) > 0 {
		b.Send(&pgproto3.DataRow{Values: values})
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")})
}

// What cannot work is refused when the connection is opened, and the error names the setting.
func TestGreetings(t *testing.T) {
	t.Parallel()
	sound := greeter{encoding: "UTF8", path: "{pg_catalog,public}", limit: "-1"}
	for name, test := range map[string]struct {
		change func(*greeter)
		pooled bool
		err    string // part of the error; "" for none
		logged bool
	}{
		"sound":                {change: func(*greeter) {}},
		"sound behind a proxy": {change: func(*greeter) {}, pooled: true},
		"another encoding":     {change: func(g *greeter) { g.encoding = "LATIN1" }, err: "encoding LATIN1"},
		"statement pooling": {
			change: func(g *greeter) { g.refusal = "transaction blocks not allowed in statement pooling mode" },
			pooled: true, err: "pool_mode = transaction",
		},
		"a shadow":                {change: func(g *greeter) { g.path, g.shadow = "{evil,pg_catalog}", "function evil.now" }, err: "function evil.now"},
		"a path without a shadow": {change: func(g *greeter) { g.path = "{pg_temp_3,pg_catalog}" }},
		"three connections":       {change: func(g *greeter) { g.limit = "3" }, logged: true},
		"enough connections":      {change: func(g *greeter) { g.limit = "5" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := sound
			test.change(&g)
			var log bytes.Buffer
			p := Transport{URL: g.serve(t), Pooled: test.pooled}
			c, err := p.Open(t.Context(), transport.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err == nil {
				ok(t, c.Close())
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want one with %q", err, test.err)
			}
			if got := strings.Contains(log.String(), "CONNECTION LIMIT"); got != test.logged {
				t.Errorf("logged: %s", log.String())
			}
		})
	}
}

// TestASearchPathMayPreferExtensions has a function that replaces one of the server's, at first
// without and then with an extension to which the function belongs, such as gen_random_uuid of
// pgcrypto.
func TestASearchPathMayPreferExtensions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := Transport{URL: testURL() + "&search_path=" + w.schema + ",pg_catalog", Schema: w.schema}
	open := func() error {
		c, err := p.Open(t.Context(), transport.Env{Endpoint: w.schema, Instance: "one"})
		if err != nil {
			return err
		}
		return c.Close()
	}
	ok(t, open())
	function := w.schema + ".octet_length(text)"
	w.exec("CREATE FUNCTION " + function + " RETURNS int LANGUAGE sql AS 'SELECT 0'")
	if err := open(); err == nil || !strings.Contains(err.Error(), "function "+w.schema+".octet_length") {
		t.Errorf("error %v, want one that names the function", err)
	}
	w.exec("ALTER EXTENSION plpgsql ADD FUNCTION " + function)
	err := open()
	w.exec("ALTER EXTENSION plpgsql DROP FUNCTION " + function)
	ok(t, err)
}
