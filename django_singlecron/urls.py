"""For a project's `urls.py`: `path("singlecron/", include("django_singlecron.urls"))`."""

from django.urls import path

from . import trigger

app_name = "django_singlecron"

urlpatterns = [path("run/<path:job>/", trigger.run, name="run")]
