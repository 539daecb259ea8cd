package sqlserver

import (
	"database/sql"
	"database/sql/driver"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"modernc.org/sqlite"
)

// The query for the parts that keep a table from being adopted is in the SQL that SQLite has in
// common with SQL Server. The tests execute it there, on tables that stand in for the server's
// catalog.

func init() {
	first := func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) { return args[0], nil }
	sqlite.MustRegisterDeterministicScalarFunction("type_name", 1, first)
	sqlite.MustRegisterDeterministicScalarFunction("object_name", 1, first)
	sqlite.MustRegisterDeterministicScalarFunction("object_id", 2,
		func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) { return int64(1), nil })
}

const catalog = `ATTACH ':memory:' AS sys;
CREATE TABLE sys.columns (object_id, name, user_type_id, max_length, is_nullable, is_identity, is_computed);
CREATE TABLE sys.identity_columns (object_id, name, increment_value);
CREATE TABLE sys.triggers (parent_id, name);
CREATE TABLE sys.check_constraints (parent_object_id, name);
CREATE TABLE sys.foreign_keys (parent_object_id, referenced_object_id, name);
CREATE TABLE sys.security_predicates (target_object_id, object_id);
CREATE TABLE sys.indexes (object_id, data_space_id);
CREATE TABLE sys.partition_schemes (data_space_id, name);
CREATE TABLE sys.tables (object_id, name, temporal_type, is_memory_optimized);
INSERT INTO sys.columns VALUES
	(1, 'Id', 'uniqueidentifier', 16, 0, 0, 0), (1, 'CorrelationId', 'varchar', 255, 1, 0, 0),
	(1, 'ReplyToAddress', 'varchar', 255, 1, 0, 0), (1, 'Recoverable', 'bit', 1, 0, 0, 0), (1, 'Expires', 'datetime', 8, 1, 0, 0),
	(1, 'Headers', 'nvarchar', -1, 0, 0, 0), (1, 'Body', 'varbinary', -1, 1, 0, 0), (1, 'RowVersion', 'bigint', 8, 0, 1, 0),
	(2, 'Other', 'int', 4, 1, 0, 0);
INSERT INTO sys.identity_columns VALUES (1, 'RowVersion', 1), (2, 'n', -1);
INSERT INTO sys.indexes VALUES (1, 1), (2, 65601);
INSERT INTO sys.partition_schemes VALUES (65601, 'by month');
INSERT INTO sys.tables VALUES (1, 'q', 0, 0), (2, 'others', 2, 1);
INSERT INTO sys.triggers VALUES (2, 'of another table');`

// unfitFor returns the parts that the query finds after change.
func unfitFor(t *testing.T, change string) (found []string) {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	ok(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), catalog+change)
	ok(t, err)
	query := regexp.MustCompile(`\bN'`).ReplaceAllString(newAdoption("dbo", place{schema: "dbo", table: "q"}).unfit, "'")
	ok(t, each(t.Context(), db, func(rows *sql.Rows) error {
		var kind, name, detail string
		err := rows.Scan(&kind, &name, &detail)
		found = append(found, strings.TrimSpace(kind+" "+name+" "+detail))
		return err
	}, query))
	slices.Sort(found)
	return found
}

func TestTablesAreAdoptedAsNServiceBusCreatesThem(t *testing.T) {
	for name, change := range map[string]string{
		"newest":                "",
		"with BodyString":       `INSERT INTO sys.columns VALUES (1, 'BodyString', 'nvarchar', -1, 1, 0, 1)`,
		"without old columns":   `DELETE FROM sys.columns WHERE name IN ('CorrelationId', 'ReplyToAddress', 'Recoverable')`,
		"adopted in part":       `INSERT INTO sys.columns VALUES (1, 'visible_at', 'datetime2', 8, 1, 0, 0), (1, 'delivery_count', 'int', 4, 1, 0, 0), (1, 'lease_owner', 'nvarchar', -1, 1, 0, 0), (1, 'last_error', 'nvarchar', -1, 1, 0, 0)`,
		"handed over before":    `UPDATE sys.columns SET user_type_id = 'datetime2' WHERE name = 'Expires'; UPDATE sys.columns SET is_nullable = 1 WHERE name = 'Recoverable'`,
		"beside a table of ill": `INSERT INTO sys.foreign_keys VALUES (2, 3, 'of others')`,
	} {
		if found := unfitFor(t, change); len(found) > 0 {
			t.Errorf("%s: refused for %q", name, found)
		}
	}
}

func TestEachPartThatNServiceBusDoesNotCreateIsRefused(t *testing.T) {
	for want, change := range map[string]string{
		"column Priority int(4)":                     `INSERT INTO sys.columns VALUES (1, 'Priority', 'int', 4, 1, 0, 0)`,
		"column Body image(16)":                      `UPDATE sys.columns SET user_type_id = 'image', max_length = 16 WHERE name = 'Body'`,
		"column Headers varchar(max) NOT NULL":       `UPDATE sys.columns SET user_type_id = 'varchar' WHERE name = 'Headers'`,
		"column Headers nvarchar(8000) NOT NULL":     `UPDATE sys.columns SET max_length = 8000 WHERE name = 'Headers'`,
		"column Expires datetime(8) NOT NULL":        `UPDATE sys.columns SET is_nullable = 0 WHERE name = 'Expires'`,
		"column RowVersion bigint(8) NOT NULL":       `UPDATE sys.columns SET is_identity = 0 WHERE name = 'RowVersion'`,
		"column RowVersion int(4) NOT NULL IDENTITY": `UPDATE sys.columns SET user_type_id = 'int', max_length = 4 WHERE name = 'RowVersion'`,
		"column Total nvarchar(max) computed":        `INSERT INTO sys.columns VALUES (1, 'Total', 'nvarchar', -1, 1, 0, 1)`,
		"column BodyString nvarchar(max)":            `INSERT INTO sys.columns VALUES (1, 'BodyString', 'nvarchar', -1, 1, 0, 0)`,
		"column visible_at datetime(8)":              `INSERT INTO sys.columns VALUES (1, 'visible_at', 'datetime', 8, 1, 0, 0)`,
		"missing column Id":                          `DELETE FROM sys.columns WHERE object_id = 1 AND name = 'Id'`,
		"missing column RowVersion":                  `DELETE FROM sys.columns WHERE object_id = 1 AND name = 'RowVersion'`,
		"identity RowVersion does not grow":          `UPDATE sys.identity_columns SET increment_value = -1`,
		"trigger audit":                              `INSERT INTO sys.triggers VALUES (1, 'audit')`,
		"check constraint small":                     `INSERT INTO sys.check_constraints VALUES (1, 'small')`,
		"foreign key of the table":                   `INSERT INTO sys.foreign_keys VALUES (1, 5, 'of the table')`,
		"foreign key to the table":                   `INSERT INTO sys.foreign_keys VALUES (5, 1, 'to the table')`,
		"row-level security tenants":                 `INSERT INTO sys.security_predicates VALUES (1, 'tenants')`,
		"partition scheme by month":                  `UPDATE sys.indexes SET data_space_id = 65601 WHERE object_id = 1`,
		"temporal table q":                           `UPDATE sys.tables SET temporal_type = 2 WHERE object_id = 1`,
		"memory-optimized table q":                   `UPDATE sys.tables SET is_memory_optimized = 1 WHERE object_id = 1`,
	} {
		if diff := cmp.Diff([]string{want}, unfitFor(t, change)); diff != "" {
			t.Errorf("%s:\n%s", change, diff)
		}
	}
}

func TestABusinessTableIsRefused(t *testing.T) {
	found := unfitFor(t, `DELETE FROM sys.columns WHERE object_id = 1; INSERT INTO sys.columns VALUES (1, 'OrderId', 'int', 4, 0, 0, 0)`)
	want := []string{
		"column OrderId int(4) NOT NULL", "missing column Body", "missing column Expires", "missing column Headers",
		"missing column Id", "missing column RowVersion",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}
