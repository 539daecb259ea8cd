package bench

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	_ "github.com/microsoft/go-mssqldb" // the database/sql driver "sqlserver"
)

// MSSQL is a database of SQL Server; an empty schema is dbo. It has no business table.
func MSSQL(url, schema string) Broker {
	if schema == "" {
		schema = "dbo"
	}
	return mssql{url, schema}
}

type mssql struct{ url, schema string }

func (m mssql) Remove(ctx context.Context, _ string, queues []string) (err error) {
	db, err := sql.Open("sqlserver", m.url)
	if err != nil {
		return errors.New("the URL cannot be parsed") // err may quote parts of the password
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, queue := range queues {
		if _, err := db.ExecContext(ctx, m.drop(queue)); err != nil {
			return err
		}
	}
	return nil
}

func (m mssql) drop(queue string) string {
	bracket := func(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }
	return "DROP TABLE IF EXISTS " + bracket(m.schema) + "." + bracket(queue)
}
