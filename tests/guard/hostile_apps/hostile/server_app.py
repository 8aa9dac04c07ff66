from flwr.serverapp import ServerApp

app = ServerApp()
