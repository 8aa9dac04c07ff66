# The command fedpriv from R: every function here writes a call, and reads the files that it leaves.

#' Carries out a command of fedpriv.
#'
#' @param ... words and options as on the command line, "ask", "count", "privacy.target_epsilon=1".
#' @return the lines that it prints, invisibly. An error where it refuses, with its words.
#' options(fedpriv.command = "/path/to/fedpriv") names another program than the fedpriv of the search path.
fedpriv <- function(...) {
  said <- tempfile("said")
  on.exit(unlink(said))
  command <- getOption("fedpriv.command", "fedpriv")
  code <- suppressWarnings(system2(command, shQuote(c(...)), stdout = said, stderr = said, env = "LD_LIBRARY_PATH=")) # R's are not for Python
  lines <- readLines(said, warn = FALSE)
  if (code == 127) stop("no program ", command, "; pip install fedpriv, or set options(fedpriv.command = ...)", call. = FALSE)
  if (!code %in% c(0, 3)) stop(paste(lines, collapse = "\n"), call. = FALSE)
  invisible(lines)
}

#' Asks a table; its answers cost epsilon at delta once for the whole list.
#'
#' @param data a data frame, or the path of a CSV, Parquet or Excel file.
#' @param questions as in docs/statistics.md: c("count", "mean:age", "quantiles:age:0.25:0.75").
#' @param schema path of the table's public schema (docs/tables.md).
#' @param epsilon,delta what the answers may cost, of a row, or of a person where the schema names a unit.
#' @param sites simulated sites among which the rows are divided; their noises add up in a secure sum. 1: one place.
#' @param options further options of the run, "privacy.rng=seeded"; epsilon and delta are refused here.
#' @param folder a new folder for the run: report, ledger, answers.csv.
#' @param certificate whether the folder gets a certificate too; later it can have one where data is a file.
#' @return a data frame: question, of, answer, low, high (an interval of 95 %), of regressions standard_error and p.
#'   Attributes: epsilon, as verified; folder.
ask <- function(data, questions, schema, epsilon, delta = 1e-5, sites = 1, options = character(),
                folder = tempfile("fedpriv-"), certificate = FALSE) {
  place <- tempfile("fedpriv-data-")
  dir.create(place, mode = "0700")
  on.exit(unlink(place, recursive = TRUE)) # no copy of the rows stays
  form <- if (sites == 1) "central" else "ddgauss"
  if (is.data.frame(data)) {
    file <- file.path(place, "table.csv")
    write.csv(data, file, row.names = FALSE, na = "")
    options <- c(paste0("dataset.cache=", place), options)
  } else {
    file <- normalizePath(data, mustWork = TRUE)
  }
  fedpriv(
    "ask", questions, "dataset=table", "engine=inprocess",
    paste0("dataset.root=", quoted(file)), paste0("dataset.schema_file=", quoted(normalizePath(schema, mustWork = TRUE))),
    paste0("privacy.target_epsilon=", format(epsilon, digits = 15)), paste0("privacy.delta=", format(delta, digits = 15)),
    paste0("num_clients=", sites), paste0("strategy.client.form=", form),
    paste0("hydra.run.dir=", quoted(folder)), options
  )
  if (certificate) fedpriv("certificate", folder)
  answers <- read.csv(file.path(folder, "answers.csv"), check.names = FALSE, stringsAsFactors = FALSE)
  names(answers) <- gsub(" ", "_", names(answers))
  structure(answers, epsilon = verified(folder), folder = folder)
}

#' A regression with intervals that hold the sampling of the rows and the noise.
#'
#' @param formula target ~ column + column, of columns of the schema.
#' @param family "linear", or another kind of `fedpriv ask`.
#' @param data,schema,epsilon,... as of ask.
regression <- function(formula, data, schema, epsilon, family = "linear", ...) {
  terms <- attr(terms(formula), "term.labels")
  names <- all.vars(formula)
  if (length(formula) != 3 || !setequal(terms, names[-1])) {
    stop("formula: must be TARGET ~ COLUMN + COLUMN, without transformations", call. = FALSE)
  }
  ask(data, paste(c(family, names[1], terms), collapse = ":"), schema, epsilon, ...)
}

#' Kaplan-Meier curves with a band that holds the noise; of groups the log-rank test, in the run's report.
#'
#' @param time,event,group columns of the schema; group may be left out.
#' @param data,schema,epsilon,... as of ask.
survival <- function(time, event, data, schema, epsilon, group = NULL, ...) {
  ask(data, paste(c("survival", time, event, group), collapse = ":"), schema, epsilon, ...)
}

#' A signed file from which anybody can compute a run's epsilon again (docs/certificates.md).
#'
#' @param folder of a finished run whose data are still where they were: attr(answers, "folder").
#' @return the path of certificate.json.
certificate <- function(folder) {
  fedpriv("certificate", folder)
  file.path(folder, "certificate.json")
}

quoted <- function(path) paste0("'", gsub("'", "\\\\'", path), "'")

verified <- function(folder) {
  text <- paste(readLines(file.path(folder, "summary.json"), warn = FALSE), collapse = "\n")
  found <- regmatches(text, regexec('"verified_epsilon": *([-+.0-9eE]+)', text))[[1]]
  if (length(found) == 2) as.numeric(found[2]) else Inf
}
