package sqlserver

import (
	"errors"
	"fmt"
	"maps"

	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// clientOptions are the options of go-mssqldb that a URL may have.
var clientOptions = []string{
	msdsn.AppName, msdsn.ApplicationIntent, msdsn.Certificate, msdsn.ChangePassword, msdsn.ConnectionTimeout,
	msdsn.Database, msdsn.DialTimeout, msdsn.DisableRetry, msdsn.Encrypt, msdsn.EpaEnabled, msdsn.FailOverPort,
	msdsn.FailoverPartner, msdsn.FailoverPartnerSpn, msdsn.GuidConversion, msdsn.HostNameInCertificate,
	msdsn.KeepAlive, msdsn.LogParam, msdsn.MultiSubnetFailover, msdsn.NoTraceID, msdsn.PacketSize, msdsn.Password,
	msdsn.Pipe, msdsn.Port, msdsn.Protocol, msdsn.Server, msdsn.ServerCertificate, msdsn.ServerSpn, msdsn.TLSMin,
	msdsn.Timezone, msdsn.TrustServerCertificate, msdsn.UserID, msdsn.WorkstationID,
}

// ParseURL returns the transport of a URL such as
// sqlserver://user:password@host:1433?database=shop&schema=app. The options schema, lease, max_tx
// and subscription_routing set the fields of those names. Further options are those of
// github.com/microsoft/go-mssqldb; an unknown one is an error that names it. No error repeats the
// URL, which may hold a password.
func ParseURL(raw string) (*Transport, error) {
	t := &Transport{}
	own := dialect.Options{
		"schema": &t.Schema, "lease": &t.Lease, "max_tx": &t.MaxTx, "subscription_routing": &t.SubscriptionRouting,
	}
	var err error
	if t.URL, err = own.ParseURL(raw, "sqlserver"); err != nil {
		return nil, fmt.Errorf("sqlserver: %w", err)
	}
	cfg, err := parse(t.URL)
	if err == nil {
		err = own.Check(maps.Keys(cfg.Parameters), clientOptions)
	}
	if err != nil {
		return nil, fmt.Errorf("sqlserver: %w", err)
	}
	return t, nil
}

var errURL = errors.New("URL cannot be parsed (it is not shown, it may hold a password): " +
	"want sqlserver://user:password@host:1433?database=name, with special characters in the password percent-encoded")

func parse(url string) (msdsn.Config, error) {
	cfg, err := msdsn.Parse(url)
	if err != nil {
		return msdsn.Config{}, errURL // err may quote parts of the password
	}
	return cfg, nil
}
