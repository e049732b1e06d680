"""Settings of the test project: a billing service with a few cron jobs."""

from testproject.postgres import database_settings

SECRET_KEY = "for the demo and the tests alone"
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "testproject.urls"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": database_settings()}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_crontab",
    "django_singlecron",
    "testproject.billing",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# What the printing service takes for one invoice.
RENDERING_SECONDS = 0.015

# What `manage.py crontab add` puts into the crontab of every replica: the same jobs, at the same second.
CRONJOBS = [
    ("0 2 * * *", "django.core.management.call_command", ["nightly_billing"]),
    ("*/15 * * * *", "testproject.billing.cron.send_reminders"),
    ("30 3 * * *", "django.core.management.call_command", ["singlecron", "run", "clearsessions"]),
]
